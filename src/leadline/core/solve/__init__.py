"""The solve: the residual system, conjugate gradients and multigrid."""
