"""Geometric multigrid on the pixel grid: one symmetric V-cycle is the preconditioner of conjugate gradients.

There are two kinds. The *membrane* preconditions the paper's system, whose bending term is negligible; the *thin plate*
preconditions the general system with edge weights, soft measurements and any bending weight.

==================== ===================================================================================
levels.py            the arrays of a level and of a hierarchy, and the inverse of the coarsest level
transfers.py         interpolation weights, restriction and prolongation
galerkin.py          the coarse operator P^T A P
cycle.py             the V-cycle: down through the levels, direct solve on the coarsest, up again
membrane.py          set-up of the membrane's levels; membrane_cycle.py: its smoother
thin_plate.py        set-up of the thin plate's levels; thin_plate_cycle.py: its smoother
==================== ===================================================================================
"""
