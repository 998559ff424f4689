//! A sink of Pillarbox: RabbitMQ with publisher confirms.
