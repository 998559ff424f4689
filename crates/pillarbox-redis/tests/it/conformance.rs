//! The Redis sink passes the exam.

use crate::place::Redis;

pillarbox_testkit::sinks!(Redis);
