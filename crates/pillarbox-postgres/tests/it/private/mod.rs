//! Servers of a test's own. By the name of this module the test runner knows tests that start servers, and runs
//! few of them at once.

mod cost;
mod crash;
mod place;
mod standby;
mod tls;
