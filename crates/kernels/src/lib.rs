//! The CPU device: numeric kernels behind safe functions, each with a scalar reference.
