"""Random shapes: the speedup of the cell over the best baseline for all shapes that a user may choose."""
