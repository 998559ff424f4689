//! The `pillarbox` program.
fn main() {}
