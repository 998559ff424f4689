use crate::support::Queue;

pillarbox_testkit::sinks!(Queue);
