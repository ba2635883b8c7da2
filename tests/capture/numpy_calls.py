"""Calls of each public name of NumPy that torch's own layer (torch._numpy) has: a line for each
name, the calls between semicolons.

The arrays are `a`, (3, 4) of float64; `b`, the same of float32; `i`, of int64; `u`, of uint8; `h`,
of float16; `m`, of truth values; `c`, of complex128; `s`, (3, 3) of float64 and positive definite;
`v` and `w`, (4,) of float64 and int64; `n`, the np.float64 that is `v[1]`; `k`, the int 2.
"""

from __future__ import annotations

import numpy as np

FUNCTIONS = """
all: np.all(a); np.all(m, axis=0); np.all(i, axis=1, keepdims=True); np.all(v)
allclose: np.allclose(a, a); np.allclose(a, b, atol=9)
alltrue:
amax: np.amax(a); np.amax(b, axis=1); np.amax(i, axis=(0, 1)); np.amax(a, 0, keepdims=True)
amin: np.amin(a); np.amin(b, axis=1); np.amin(i, 0, initial=-3); np.amin(u)
angle: np.angle(c); np.angle(c, deg=True); np.angle(a)
any: np.any(m); np.any(i, axis=0); np.any(m, 1, keepdims=True)
append: np.append(a, b); np.append(a, i, axis=0); np.append(v, 3); np.append(v, [1, 2])
arange: np.arange(5) + v[0]; np.arange(k) + w[0]; np.arange(1, 2, 0.25) * n; np.arange(3, 0, -1)
argmax: np.argmax(a); np.argmax(b, axis=1); np.argmax(m, 0); np.argmax(i, axis=-1, keepdims=True)
argmin: np.argmin(a); np.argmin(h, axis=0); np.argmin(u)
argsort: np.argsort(a); np.argsort(a, axis=0); np.argsort(v, kind='stable'); np.argsort(a,
    axis=None)
argwhere: np.argwhere(a > 0)
around: np.around(a); np.around(b, 2); np.around(i, 1); np.around(a, -1)
array: np.array(a); np.array([v, v]); np.array([n, 1]); np.array(i, dtype=float); np.array(a,
    ndmin=3)
array_equal: np.array_equal(a, a); np.array_equal(a, b); np.array_equal(a, v)
array_equiv: np.array_equiv(a, a); np.array_equiv(a, v)
array_split: np.array_split(v, 3); np.array_split(a, [1, 2], axis=1)
asarray: np.asarray(a); np.asarray(i, dtype=np.float32); np.asarray([1.5, n])
ascontiguousarray: np.ascontiguousarray(a.T); np.ascontiguousarray(n)
atleast_1d: np.atleast_1d(n); np.atleast_1d(a, v)
atleast_2d: np.atleast_2d(v); np.atleast_2d(n, a)
atleast_3d: np.atleast_3d(a); np.atleast_3d(v, n)
average: np.average(a); np.average(a, axis=1, weights=v); np.average(i, 0, returned=True)
bartlett: np.bartlett(5) * n
bincount: np.bincount(w)
blackman: np.blackman(5) * n
broadcast_arrays: np.broadcast_arrays(a, v)[1]
broadcast_shapes: np.broadcast_shapes(a.shape, v.shape)
broadcast_to: np.broadcast_to(v, (3, 4)) + a; np.broadcast_to(n, (2,)) + 1
can_cast: np.can_cast(a.dtype, b.dtype); np.can_cast(i.dtype, a.dtype)
choose: np.choose(w % 2, [v, v * 2])
clip: np.clip(a, -0.5, 0.5); np.clip(i, 1, None); np.clip(b, v, 2); np.clip(u, 1, 200)
column_stack: np.column_stack([v, w]); np.column_stack([a, a])
common_type: np.common_type(a, b); np.common_type(i, c)
concatenate: np.concatenate([a, b]); np.concatenate([a, i], axis=1); np.concatenate((v, w),
    axis=None)
convolve: np.convolve(v, v); np.convolve(v, w, 'same'); np.convolve(v, v[:2], 'valid')
copy: np.copy(a); np.copy(a.T); np.copy(n)
copyto: np.copyto(a, b); np.copyto(a, v, where=m); np.copyto(i, a)
corrcoef: np.corrcoef(a); np.corrcoef(v, v * 2)
correlate: np.correlate(v, v); np.correlate(v, w, 'full'); np.correlate(v[:2], v, 'same')
count_nonzero: np.count_nonzero(a); np.count_nonzero(m, axis=1); np.count_nonzero(i, 0,
    keepdims=True)
cov: np.cov(a); np.cov(v, w); np.cov(a, rowvar=False, ddof=0)
cross: np.cross(s, s[0]); np.cross(s, s.T, axis=0)
cumprod: np.cumprod(a); np.cumprod(i, axis=1); np.cumprod(b, 0)
cumsum: np.cumsum(a); np.cumsum(i, axis=1); np.cumsum(h, 0); np.cumsum(m)
diag: np.diag(v); np.diag(a); np.diag(a, 1); np.diag(v, -1)
diag_indices: np.diag_indices(3)[0] + w[0]
diag_indices_from: s[np.diag_indices_from(s)]
diagflat: np.diagflat(v); np.diagflat(a, 1)
diagonal: np.diagonal(a) + 1; np.diagonal(a, 1) * 2
diff: np.diff(a); np.diff(i, axis=0); np.diff(v, 2); np.diff(m)
dot: np.dot(a, v); np.dot(a, a.T); np.dot(v, v); np.dot(i, w); np.dot(a, 2); np.dot(a[None], s[:2,
    None])
dsplit: np.dsplit(a[None], 2)[0]
dstack: np.dstack([a, a]); np.dstack([v, w])
einsum: np.einsum('ij,j->i', a, v); np.einsum('ij,ij', a, a); np.einsum('ii->i', s)
empty: np.empty((2, 3)).shape; np.empty(k).dtype
empty_like: np.empty_like(a).shape; np.empty_like(b, dtype=int).dtype
expand_dims: np.expand_dims(a, 0); np.expand_dims(v, (0, 2))
eye: np.eye(3) * n; np.eye(3, 4, 1) + a
fill_diagonal: np.fill_diagonal(s, 1)
fix: np.fix(a * 3); np.fix(b)
flatnonzero: np.flatnonzero(a > 0)
flip: np.flip(a); np.flip(a, 1) + 1; np.flip(v)
fliplr: np.fliplr(a); np.fliplr(a) * 2
flipud: np.flipud(a) + v
from_dlpack: np.from_dlpack(a)
full: np.full((2, 3), n); np.full(k, 3) + w[0]; np.full((2, 2), 1.5)
full_like: np.full_like(a, 2); np.full_like(i, n)
geomspace: np.geomspace(1, 8, 4) * n
gradient: np.gradient(v); np.gradient(a, axis=0); np.gradient(v, 2.0)
hamming: np.hamming(5) * n
hanning: np.hanning(5) * n
histogram: np.histogram(v)
histogram2d: np.histogram2d(v, v)
histogramdd: np.histogramdd(a)
hsplit: np.hsplit(a, 2)[1]; np.hsplit(v, [1, 2])
hstack: np.hstack([a, b]); np.hstack([v, n])
i0: np.i0(v)
identity: np.identity(3) * n
imag: np.imag(c); np.imag(a)
indices: np.indices((2, 3)) * k
inner: np.inner(a, v); np.inner(a, a); np.inner(v, w); np.inner(v, 2)
isclose: np.isclose(a, a + 1e-9); np.isclose(b, v); np.isclose(n, 1)
iscomplex: np.iscomplex(c); np.iscomplex(a)
iscomplexobj: np.iscomplexobj(c); np.iscomplexobj(a)
isneginf: np.isneginf(a)
isposinf: np.isposinf(a)
isreal: np.isreal(c); np.isreal(a)
isrealobj: np.isrealobj(c)
isscalar: np.isscalar(a); np.isscalar(n); np.isscalar(3)
issubdtype: np.issubdtype(a.dtype, np.floating); np.issubdtype(i.dtype, np.integer)
kaiser: np.kaiser(5, 2.0) * n
kron: np.kron(a, v); np.kron(s, s)
linspace: np.linspace(0, n, 5); np.linspace(0, 1, 5) * v[0]; np.linspace(0, v, 3)
logspace: np.logspace(0, 1, 4) * n
max: np.max(a); np.max(i, axis=0); np.max(a, initial=9.0); np.max(a, where=m, initial=-9.0)
mean: np.mean(a); np.mean(i, axis=0); np.mean(h); np.mean(u); np.mean(b, (0, 1), keepdims=True)
median: np.median(a); np.median(v)
meshgrid: np.meshgrid(v, w)[0]; np.meshgrid(v, w, indexing='ij')[1]; np.meshgrid(v, w,
    sparse=True)[1]
min: np.min(a); np.min(u, axis=0); np.min(b, 1, keepdims=True)
min_scalar_type: np.min_scalar_type(a)
moveaxis: np.moveaxis(a, 0, 1); np.moveaxis(a[None], 0, -1)
nan_to_num: np.nan_to_num(a); np.nan_to_num(b, nan=1.0)
ndim: np.ndim(a); np.ndim(n)
nonzero: np.nonzero(a > 0)
ones: np.ones(3) * n; np.ones((k, 2), dtype=np.float32) + n
ones_like: np.ones_like(a); np.ones_like(i, dtype=float)
outer: np.outer(v, w); np.outer(a, v)
pad: np.pad(a, 1); np.pad(v, (1, 2), constant_values=3); np.pad(a, ((0, 1), (2, 0)))
percentile: np.percentile(v, 30)
prod: np.prod(a); np.prod(i, axis=0); np.prod(a, (0, 1)); np.prod(m)
ptp: np.ptp(a); np.ptp(i, axis=1)
put: np.put(v, [0, 1], 5.0)
put_along_axis: np.put_along_axis(a, i[:, :1] % 4, 0.0, axis=1)
quantile: np.quantile(v, 0.3)
ravel: np.ravel(a); np.ravel(a.T); np.ravel(a, order='F'); np.ravel(n)
real: np.real(c); np.real(a)
real_if_close: np.real_if_close(a)
repeat: np.repeat(a, 2); np.repeat(v, k); np.repeat(a, 3, axis=1)
reshape: np.reshape(a, (4, 3)); np.reshape(a, -1); np.reshape(a, (2, -1), order='F');
    np.reshape(a, (5, 2))
resize: np.resize(a, (2, 3)); np.resize(v, 6)
result_type: np.result_type(a, b); np.result_type(i, 1.5); np.result_type(b, 2)
roll: np.roll(v, 1); np.roll(a, 1, axis=0); np.roll(a, -1)
rollaxis: np.rollaxis(a, 1)
rot90: np.rot90(a); np.rot90(a, 2) + 1
round: np.round(a); np.round(b, 1); np.round(n, 2); np.round(c)
round_:
row_stack:
searchsorted: np.searchsorted(v, a[0]); np.searchsorted(v, 0.5); np.searchsorted(v, b,
    side='right')
select:
shape: np.shape(a); np.shape(n); np.shape([v, v])
sinc: np.sinc(v); np.sinc(b)
size: np.size(a); np.size(a, 1)
sometrue:
sort: np.sort(a); np.sort(i, axis=0); np.sort(b, axis=None); np.sort(v)[::-1]
sort_complex:
split: np.split(a, 2, axis=1)[0]; np.split(v, [1, 3]); np.split(a, 2)
squeeze: np.squeeze(a[None]); np.squeeze(a[None], 0); np.squeeze(a, 0)
stack: np.stack([a, b]); np.stack([v, w], axis=1); np.stack([v, a])
std: np.std(a); np.std(i, axis=0); np.std(b, 1, ddof=1); np.std(h); np.std(c); np.std(a,
    keepdims=True)
sum: np.sum(a); np.sum(i, axis=0); np.sum(m); np.sum(b, dtype=np.float64); np.sum(u, axis=1,
    dtype=int); np.sum(a, (0, 1), keepdims=True); np.sum(a, where=m); np.sum(a, initial=2.0);
    np.sum(h); np.sum(a, 5)
swapaxes: np.swapaxes(a, 0, 1)
take: np.take(a, [0, 2]); np.take(a, w % 3, axis=0); np.take(v, 1); np.take(a, 1, axis=1)
take_along_axis: np.take_along_axis(a, np.argsort(a, axis=1), axis=1)
tensordot: np.tensordot(a, a, axes=((1,), (1,))); np.tensordot(a, v, 1); np.tensordot(v, v, 0)
tile: np.tile(v, 2); np.tile(a, (2, 1)); np.tile(n, 3)
trace: np.trace(s); np.trace(a, 1); np.trace(i, dtype=float)
transpose: np.transpose(a); np.transpose(a[None], (1, 0, 2))
tri: np.tri(3) * n
tril: np.tril(a); np.tril(s, -1)
tril_indices: s[np.tril_indices(3)]
tril_indices_from: s[np.tril_indices_from(s)]
triu: np.triu(a); np.triu(i, 1)
triu_indices: s[np.triu_indices(3)]
triu_indices_from: s[np.triu_indices_from(s)]
unique: np.unique(w)
vander: np.vander(v); np.vander(v, 3, increasing=True)
var: np.var(a); np.var(i, axis=0); np.var(b, ddof=1); np.var(c, axis=1); np.var(h, 0)
vdot: np.vdot(v, w); np.vdot(c, c); np.vdot(a, a)
vsplit: np.vsplit(a[:2], 2)[1]
vstack: np.vstack([a, b]); np.vstack([v, w])
where: np.where(m, a, b); np.where(a > 0, a, 0); np.where(m, 1, 2.5); np.where(m, i, 1.5)
zeros: np.zeros(3) + n; np.zeros((k, 2), dtype=int) + w[0]; np.zeros_like(a)
zeros_like: np.zeros_like(a); np.zeros_like(b, dtype=int); np.zeros_like(a, shape=(2,))
"""

LINALG = """
LinAlgError: issubclass(np.linalg.LinAlgError, ValueError)
cholesky: np.linalg.cholesky(s); np.linalg.cholesky(-s); np.linalg.cholesky(s[None])
cond: np.linalg.cond(s); np.linalg.cond(s, 1)
det: np.linalg.det(s); np.linalg.det(s[None]); np.linalg.det(a)
eig: np.linalg.eig(s)
eigh: np.linalg.eigh(s); np.linalg.eigh(s, UPLO='U')
eigvals: np.linalg.eigvals(s)
eigvalsh: np.linalg.eigvalsh(s)
inv: np.linalg.inv(s); np.linalg.inv(s * 0); np.linalg.inv(s.astype(np.float32)); np.linalg.inv(a)
lstsq: np.linalg.lstsq(a, a[:, 0])[0]
matrix_power: np.linalg.matrix_power(s, 3); np.linalg.matrix_power(s, -1);
    np.linalg.matrix_power(s, 0)
matrix_rank: np.linalg.matrix_rank(s)
multi_dot: np.linalg.multi_dot([a, a.T, a])
norm: np.linalg.norm(a); np.linalg.norm(v, 1); np.linalg.norm(a, axis=1); np.linalg.norm(a,
    'fro'); np.linalg.norm(v, np.inf); np.linalg.norm(s, 2); np.linalg.norm(i, axis=0,
    keepdims=True)
pinv: np.linalg.pinv(a)
qr: np.linalg.qr(s)
slogdet: np.linalg.slogdet(s)
solve: np.linalg.solve(s, s[0]); np.linalg.solve(s, a); np.linalg.solve(s * 0, a)
svd: np.linalg.svd(s)[1]; np.linalg.svd(a, full_matrices=False)[1]; np.linalg.svd(a,
    compute_uv=False)
tensorinv: np.linalg.tensorinv(s, 1)
tensorsolve: np.linalg.tensorsolve(s, s[0])
"""

FFT = """
fft: np.fft.fft(a); np.fft.fft(b, axis=0); np.fft.fft(v, 6); np.fft.fft(v, norm='ortho')
fft2: np.fft.fft2(a)
fftfreq: np.fft.fftfreq(5, 0.1) * n
fftn: np.fft.fftn(a); np.fft.fftn(a, axes=(0,))
fftshift: np.fft.fftshift(a); np.fft.fftshift(v)
hfft: np.fft.hfft(c)
ifft: np.fft.ifft(c); np.fft.ifft(a, axis=0)
ifft2: np.fft.ifft2(c)
ifftn: np.fft.ifftn(c)
ifftshift: np.fft.ifftshift(a, axes=1)
ihfft: np.fft.ihfft(v)
irfft: np.fft.irfft(c); np.fft.irfft(c, 5)
irfft2: np.fft.irfft2(c)
irfftn: np.fft.irfftn(c)
rfft: np.fft.rfft(a); np.fft.rfft(v, 3); np.fft.rfft(i)
rfft2: np.fft.rfft2(a)
rfftfreq: np.fft.rfftfreq(5) * n
rfftn: np.fft.rfftn(a)
"""

METHODS = """
T: a.T; n.T
all: m.all(); a.all(axis=0)
any: m.any(axis=1)
argmax: a.argmax(); i.argmax(1)
argmin: a.argmin(axis=0)
argpartition: np.sort(a)[0]
argsort: a.argsort(axis=0)
astype: a.astype(np.float32); a.astype(int); i.astype('float16'); a.astype(bool); a.astype(float)
    is a; n.astype(np.float32)
base:
byteswap:
choose:
clip: a.clip(-0.1, 0.1); i.clip(2)
compress:
conj: c.conj(); a.conj() + 1
conjugate: c.conjugate()
copy: a.copy(); a.T.copy(); n.copy()
ctypes:
cumprod: a.cumprod(axis=1)
cumsum: i.cumsum(); a.cumsum(0)
data:
device: a.device
diagonal: s.diagonal() + 1
dot: a.dot(v)
dtype: a.dtype; n.dtype
dump:
dumps:
fill: a.fill(3)
flags: a.flags.c_contiguous; a.T.flags['F_CONTIGUOUS']
flat:
flatten: a.flatten(); a.flatten('F')
getfield:
imag: c.imag; a.imag
item: v.item(0); n.item(); v[:1].item()
itemsize: a.itemsize
mT: a.mT; v.mT
max: a.max(); a.max(axis=0); n.max()
mean: a.mean(); i.mean(1)
min: a.min()
nbytes: a.nbytes
ndim: a.ndim
nonzero: v.nonzero()
partition:
prod: a.prod()
put:
ravel: a.ravel(); a.T.ravel('F')
real: c.real; a.real is a
repeat: v.repeat(2)
reshape: a.reshape(4, 3); a.reshape((2, 6)); a.reshape(-1); a.reshape(7)
resize:
round: a.round(1); n.round()
searchsorted: v.searchsorted(0.5)
setfield:
setflags:
shape: a.shape; n.shape
size: a.size; n.size
sort: a.sort(); a.sort(axis=0)
squeeze: a[None].squeeze()
std: a.std(); a.std(axis=1, ddof=1)
strides: a.strides; a.T.strides
sum: a.sum(); a.sum(1); i.sum(axis=0, keepdims=True); u.sum(dtype=np.int32)
swapaxes: a.swapaxes(0, 1)
take: v.take([1, 2]); a.take(w % 2, axis=0)
to_device:
tobytes:
tofile:
tolist: v.tolist()
trace: s.trace()
transpose: a.transpose(); a.transpose(1, 0)
var: a.var(axis=0)
view: a.view(); a.view(np.int64); c.view(float)
"""

OTHERS = """
operators: a + b; a - i; i * 2; a / 3; i / i; i // 3; i % 3; a // b; a % b; a ** 2; i ** 2; b **
    0.5; 2 ** b; 2.0 ** i; a @ v; -a; +a; abs(a); ~m; ~i; m & m; m | ~m; i ^ 1; i << 1; i >> 1; 1
    - b; 1 / b; 3 // a; 7 % i
types: b + 1; b + 1.5; b + n; h * 2.5; u + 1; u - 1; u * u; u / 2; u + 300; i + True; m + m; m +
    1; m * 1.5; b + np.float32(1); b + np.float64(1); i + np.int32(1); u + np.int8(1); a + 1j; b *
    1j; h + b; ~u; -u
comparisons: a > 0; a == b; i != 3; a <= b; m == True; a == None
numbers: n + 1; n * 2.0; n / 0.0; n + b; n == n; -n; n ** 2; abs(n); n > 0; float(n); int(n * 10);
    n + k; n * np.float32(2); a[0, 0] + a[1, 1]; b[0, 0] + 1.5; b[0, 0] * n; i[0, 0] // 2;
    int(i[0, 1]); str(type(b[0, 0]))
items: a[0]; a[0, 1]; a[-1]; a[1:]; a[:, ::2]; a[..., 0]; a[None]; a[:, None, 1]; a[::-1]; a[:,
    ::-2]; a[[0, 2]]; a[w % 3]; a[:, [0, 1]]; a[[0, 1], [1, 2]]; a[0, [1, 2]]; a[m]; a[a > 0];
    a[(1, 2)]; a[()]; a[...]; n[()]; n[...]; a[w[0] % 3]; a[k - 1]; a[9]; a[0, 0, 0]; a[1.5]; a[u
    % 3]; a[None][0, :, [1, 2]]; a[1:][::-1][0]
writes: a.__setitem__(0, 1); a.__setitem__((slice(None), 1), v[:3]); a.__setitem__(m, 0.0);
    i.__setitem__(0, 2.7); i.__setitem__(0, 1 << 70); a.__setitem__([0, 1], v); b.__setitem__(...,
    a); a.__setitem__((slice(None, None, -1), 0), v[:3]); a.__setitem__(0, [1, 2, 3, 4]);
    i.__setitem__(0, 1j); u.__setitem__(0, 300); a.__setitem__(0, s)
in_place: operator.iadd(a, b); operator.imul(a, 2); operator.iadd(i, 1.5); operator.iadd(i, 2);
    operator.iadd(b, a); operator.itruediv(a, v); operator.ifloordiv(i, 2); operator.ipow(a, 2);
    operator.iadd(v, a)
out: np.add(a, b, out=a); np.sin(b, out=a); np.sum(a, axis=0, out=v); np.multiply(i, 1.5, out=i);
    np.add(a, 1, where=m, out=a); np.exp(a, a); np.mean(a, axis=0, out=v); np.add(v, a, out=v);
    np.sqrt(i, dtype=np.float32); np.add(a, a, casting='no'); np.add(i, i, dtype=np.float32)
ufuncs: np.add.reduce(a); np.add.reduce(a, axis=None); np.multiply.reduce(i, 1);
    np.maximum.reduce(a, axis=(0, 1)); np.add.accumulate(a); np.maximum.accumulate(a, axis=1);
    np.add.outer(v, w); np.subtract.outer(a, v); np.logical_or.reduce(m, axis=0);
    np.minimum.reduce(u)
types of numbers: np.float32(n); np.int64(n * 3); np.float64(w[0]); np.bool_(w[0]);
    np.float32(2.5) * b; np.int8(3) + i
questions: isinstance(a, np.ndarray); isinstance(n, float); isinstance(n, np.floating); len(a);
    a.shape[0] * 2; type(n); type(a); hasattr(a, 'foo'); a.foo; len(n); a is a; np.float64 is
    type(n)
loops: [row.sum() for row in a]; sum(v); max(v); [x for x in v]; list(a.T)[0]; list(n)
"""


MORE = """
without NaN: np.nanmean(a); np.nansum(a, axis=0); np.nanmax(a); np.nanstd(a); np.nanmin(b,
    axis=1); np.nanargmax(a); np.nanprod(v); np.nanvar(a, axis=0); np.nancumsum(v);
    np.nanmedian(a)
statistics: np.median(a, axis=1); np.quantile(a, [0.1, 0.5], axis=0); np.percentile(a, 50, axis=1,
    keepdims=True); np.histogram(a, bins=5); np.histogram(v, bins=3, range=(-1, 1));
    np.histogram(v, density=True); np.digitize(v, [-1.0, 0.0, 1.0]); np.interp(v, [-2.0, 2.0],
    [0.0, 1.0]); np.interp(0.5, v, v); np.ptp(a); np.average(a, weights=a)
mathematics: np.trapezoid(v); np.polyval([1.0, 2.0], v); np.polyval(v, 2.0); np.unwrap(v);
    np.ediff1d(v); np.gradient(a); np.cross(s[0], s[1]); np.interp(v, v, v); np.sinc(a); np.i0(v);
    np.nan_to_num(a, copy=False); np.angle(c); np.real_if_close(c); np.heaviside(a, 0.5);
    np.clip(a, None, 0.5); np.sign(a); np.maximum(a, 0); np.logaddexp(a, b); np.convolve(a[0],
    a[1])
sets: np.isin(w, [1, 2]); np.unique(w); np.intersect1d(w, w); np.union1d(w, w); np.setdiff1d(w, w)
made arrays: np.r_[v, v]; np.c_[v, v]; np.mgrid[0:2, 0:3] * n; np.ogrid[0:2, 0:3][0] * n;
    np.ix_([0, 1], [1, 2]); a[np.ix_([0, 1], [1, 2])]; np.tile(a, 2); np.block([[a, a]]);
    np.vstack((a, v)); np.insert(v, 1, 5.0); np.delete(v, 1); np.delete(a, [0], axis=0);
    np.roll(a, (1, 1), (0, 1)); np.resize(a, 3); np.trim_zeros(v); np.select([v > 0, v < 0], [v,
    -v]); np.piecewise(v, [v < 0], [0, 1]); np.fromfunction(lambda x, y: x + y, (2, 2)) * n;
    np.array([[1, n], [n, 2]]); np.array([v[0], v[1]]); np.asarray([a, a]); np.stack([v[0],
    v[1]]); np.full_like(a, v[0]); np.eye(4)[w % 4]; np.diag(v) @ a.T; np.split(v, 2);
    np.vsplit(s, 3)
functions applied: np.apply_along_axis(np.sum, 0, a); np.apply_over_axes(np.sum, a, [0, 1]);
    np.vectorize(lambda x: x + 1)(v);
linear algebra: np.linalg.norm(a, axis=(0, 1)); np.linalg.matrix_norm(s);
    np.linalg.vector_norm(a); np.linalg.svdvals(a); np.linalg.outer(v, v); np.linalg.cross(s, s);
    np.linalg.matmul(s, s); np.linalg.trace(s); np.linalg.diagonal(s);
    np.linalg.matrix_transpose(a); np.linalg.vecdot(v, v); np.linalg.tensordot(a, a, axes=2);
    np.linalg.qr(a.T); np.linalg.qr(s, mode='r'); np.linalg.cond(s); np.linalg.cond(s, 'fro'); s @
    np.linalg.inv(s); np.linalg.solve(s, v[:3]); np.linalg.eigh(s)[0]; np.linalg.pinv(a) @ a;
    np.linalg.matrix_rank(a); np.einsum('ij,jk->ik', a, a.T, optimize=True); np.einsum('i,i', v,
    w); np.einsum('ij->j', i); np.einsum('...j->...', a)
more items: np.add.at(v, [0, 0, 1], 1.0); np.add.at(a, (w[:3] % 3, w[:3] % 4), v[:3]);
    np.subtract.at(v, [0], 1); a[w % 3].sum(0); a[:, 0][::-1]; a[::-1, ::-1]; a[::-1][:2];
    a[::-1][1, 1]; a[::-2, 1:]; a[::-1].T; np.flip(a).T + 1; np.rot90(a, 3); a[::-1].copy();
    a[::-1].sum(); np.take(a, 1, mode='clip'); np.put(a, [1], [2.0]); a[np.arange(3),
    np.arange(3)]; a[np.argmax(a, 0)[0]]; a[np.argsort(a[:, 0])]; np.searchsorted(np.sort(v), v);
    v[np.where(v > 0)]; np.where(v > 0)[0]; a[m].mean(); a[~m]; np.extract(m, a);
    np.compress(m[0], a, axis=1); np.place(a, m, [9.0]); np.putmask(a, m, 0.0); a[i > 4];
    np.flatnonzero(v); np.nonzero(a)[0]; np.lexsort((v, w)); np.partition(v, 2)[2];
    np.argpartition(v, 2)[:2]; np.unravel_index(5, (3, 4)); np.ravel_multi_index((1, 2), (3, 4));
    np.unravel_index(np.argmax(a), a.shape)
types of elements: a.dtype == np.float64; a.dtype.kind; np.finfo(a.dtype).eps * n;
    np.iinfo(i.dtype).max; a.dtype.type(3); np.issubdtype(b.dtype, np.floating);
    np.dtype('float32') == b.dtype; a.dtype.name; b.astype(a.dtype).dtype; np.float32(a[0, 0]);
    np.int32(7) * i; np.array(3) + a; np.array(3.5) * b; np.float16(2) * b; b * np.array(2.0); b *
    np.array([2.0])
sizes as numbers: a.shape[0] * n; a.size / 2; np.prod(a.shape); np.zeros(a.shape[::-1]) + n;
    np.ones((a.shape[0], 1)) * v; a.reshape(a.size); a.reshape(*a.shape[::-1]);
    np.arange(a.shape[1]) * v; len(a) * v; np.linspace(0, 1, len(v)) * v; range(len(v))[-1]
"""

BREAKS = frozenset({
    "np.from_dlpack(a)", "np.histogramdd(a)", "np.linspace(0, v, 3)",
    "np.linalg.lstsq(a, a[:, 0])[0]",
    "v.tolist()", "max(v)", "np.real_if_close(c)",
    "np.setdiff1d(w, w)", "np.vectorize(lambda x: x + 1)(v)",
    "np.subtract.at(v, [0], 1)",
    "np.take(a, 1, mode='clip')", "a[m].mean()", "np.compress(m[0], a, axis=1)",
    "np.place(a, m, [9.0])", "np.putmask(a, m, 0.0)",
})  # fmt: skip
"""Calls that break the graph."""
if np.lib.NumpyVersion(np.__version__) < "2.5.0":  # which gives real numbers where all are real
    BREAKS |= {"np.linalg.eig(s)", "np.linalg.eigvals(s)"}

LAYOUTS = frozenset(
    {"np.nonzero(a > 0)", "a[:, [0, 1]]", "np.histogram2d(v, v)", "np.nonzero(a)[0]"}
)
"""Calls whose results lie otherwise in memory; NumPy says of them that no order is promised."""


def lines(text: str) -> dict[str, list[str]]:
    """The calls by name."""
    table = {}
    for line in text.strip().replace("\n    ", " ").splitlines():
        name, _, calls = line.partition(":")
        table[name] = list(filter(None, map(str.strip, calls.split(";"))))
    return table


def arrays() -> dict[str, object]:
    """The arrays, made anew."""
    random = np.random.default_rng(3)
    a = random.standard_normal((3, 4))
    half = random.standard_normal((3, 3))
    v = random.standard_normal(4)
    return {
        "a": a,
        "b": random.standard_normal((3, 4)).astype(np.float32),
        "i": random.integers(1, 9, (3, 4)),
        "u": random.integers(1, 200, (3, 4)).astype(np.uint8),
        "h": random.standard_normal((3, 4)).astype(np.float16),
        "m": random.random((3, 4)) > 0.4,
        "c": a + 1j * random.standard_normal((3, 4)),
        "s": half @ half.T + np.eye(3),
        "v": v,
        "w": random.integers(0, 9, 4),
        "n": v[1],
        "k": 2,
    }
