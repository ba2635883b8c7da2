"""Finding a fault of Ingot's own: compare with eager, write it down, make it small, find its stage.

In: a captured graph and its inputs. Out: the first op whose value is not eager's (`verifying`), a
script that shows a failure (`repro`), a smaller one (`minimizing`), and the pass or kernel that is
at fault (`bisecting`). All of them work on a `Case`: a graph of torch calls as Python text.
"""
