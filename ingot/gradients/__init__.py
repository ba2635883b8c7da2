"""The programs of the gradients of a captured graph.

A captured graph and its partition go in; out come the backward programs and the higher-order
program, each compiled when it is first asked for. What is compiled after the forward has run never
fails: it runs in eager instead, op by op.
"""
