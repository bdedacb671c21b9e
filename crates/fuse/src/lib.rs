//! The FUSE front: requests of the kernel to the node, and its errors to errno.
