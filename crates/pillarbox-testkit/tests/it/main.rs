//! Tests of the test kit.

mod conformance;
