//! The MQTT source passes the exam.

use crate::support::Topic;

pillarbox_testkit::sources!(Topic);
