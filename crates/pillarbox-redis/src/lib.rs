//! A sink of Pillarbox: Redis Streams.
