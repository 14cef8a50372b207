"""Classical methods and alignments that need no training: what people use today where they do not use a network.

Each module states its source and the licence of the public code it was compared with. No code was copied.
"""
