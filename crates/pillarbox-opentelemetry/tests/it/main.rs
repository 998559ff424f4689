//! Traces and metrics, as a collector of the test's own gets them.

mod collector;
mod metrics;
mod relay;
mod shop;
mod traces;
