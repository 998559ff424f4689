//! A sink of Pillarbox: web hooks, signed.
