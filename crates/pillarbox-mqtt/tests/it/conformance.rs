use crate::support::Topic;

pillarbox_testkit::sinks!(Topic);
