use pillarbox_core::Outbox;

struct Pool;

fn on_a_url() {
    let _ = Outbox::multi_node("sqlite:shop.db");
}

fn on_a_pool(pool: Pool) {
    let _ = Outbox::multi_node(pool);
}

fn main() {}
