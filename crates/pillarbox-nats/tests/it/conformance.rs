//! The NATS sink passes the exam.

use crate::place::Nats;

pillarbox_testkit::sinks!(Nats);
