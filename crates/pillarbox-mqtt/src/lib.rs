//! A sink of Pillarbox: MQTT with quality of service 1.
