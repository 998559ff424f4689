//! What makes events move.

mod ids;

pub use ids::new_id;
