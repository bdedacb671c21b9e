//! Simulations that drive the real core over modelled disks, links and nodes.
