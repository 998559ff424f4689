use pillarbox_core::{
    Event, OutboxEvent as _,
    domain::{CodecError, Codecs, Former, Route},
};
use pillarbox_macros::OutboxEvent;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Customer {
    id: u64,
    tenant: Option<String>,
}

impl Customer {
    fn name(&self) -> String {
        format!("customer-{}", self.id)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, type = "order.placed", aggregate = "Order", aggregate_id = number, key = key())]
#[outbox(tenant = customer.tenant, context(customer = customer.name(), number = number))]
struct Placed {
    number: i64,
    customer: Customer,
}

impl Placed {
    fn key(&self) -> String {
        format!("order-{}", self.number)
    }
}

fn placed(tenant: Option<&str>) -> Placed {
    Placed { number: 7, customer: Customer { id: 3, tenant: tenant.map(Into::into) } }
}

fn read<E: pillarbox_core::OutboxEvent>(event: &Event) -> Result<E, CodecError> {
    E::decode(event, &Codecs::default())
}

#[test]
fn fields_nested_fields_and_methods_describe_the_event() {
    let event = placed(Some("north")).to_event().build().unwrap();
    assert_eq!(event.event_type().as_str(), "order.placed");
    assert_eq!((event.aggregate_type().as_str(), event.aggregate_id()), ("Order", Some("7")));
    assert_eq!((event.key().unwrap().as_str(), event.tenant_id()), ("order-7", Some("north")));
    let context: Vec<_> = event.headers().contexts().collect();
    assert_eq!(context, [("customer", "customer-3"), ("number", "7")]);
    assert_eq!(Placed::routes(), [Route::new("Order", "order.placed")]);
    assert_eq!(read::<Placed>(&event).unwrap(), placed(Some("north")));
}

#[test]
fn what_is_none_is_not_set() {
    assert_eq!(placed(None).to_event().build().unwrap().tenant_id(), None);
}

#[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
struct Plain(u8);

#[test]
fn a_type_without_attributes_is_called_as_it_is() {
    let event = Plain(7).to_event().build().unwrap();
    assert_eq!((event.event_type().as_str(), event.key()), ("Plain", None));
    assert_eq!(event.aggregate_type().as_str(), "__GLOBAL__");
    assert!(event.headers().is_empty());
    assert_eq!(read::<Plain>(&event).unwrap(), Plain(7));
}

#[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, aggregate = "Order", key = order)]
enum Change {
    Placed {
        order: String,
        total: u32,
    },
    #[outbox(type = "OrderShipped", context(carrier = carrier))]
    Shipped {
        order: String,
        carrier: String,
    },
    #[outbox(key = 0.number, aggregate = "Parcel")]
    Lost(Parcel),
    #[outbox(key = whole())]
    Forgotten,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Parcel {
    number: u64,
}

impl Change {
    fn whole(&self) -> &'static str {
        if *self == Self::Forgotten { "all" } else { "one" }
    }
}

#[test]
fn each_variant_is_an_event_type_of_its_own() {
    let order = || "7".to_owned();
    let cases = [
        (Change::Placed { order: order(), total: 1 }, "Placed", "Order", "7"),
        (Change::Shipped { order: order(), carrier: "post".into() }, "OrderShipped", "Order", "7"),
        (Change::Lost(Parcel { number: 9 }), "Lost", "Parcel", "9"),
        (Change::Forgotten, "Forgotten", "Order", "all"),
    ];
    let routes = cases.iter().map(|(_, event_type, aggregate, _)| Route::new(*aggregate, *event_type));
    assert_eq!(Change::routes(), routes.collect::<Vec<_>>());
    for (change, event_type, aggregate, key) in cases {
        let event = change.to_event().build().unwrap();
        assert_eq!((event.event_type().as_str(), event.aggregate_type().as_str()), (event_type, aggregate));
        assert_eq!(event.key().unwrap().as_str(), key);
        assert_eq!(read::<Change>(&event).unwrap(), change);
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, type = "Priced")]
struct First {
    cents: i64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, type = "Priced", version = 3, upcast = from_former)]
struct InHeader {
    cents: i64,
    currency: String,
}

fn from_former(former: Former<'_>) -> Result<InHeader, CodecError> {
    let First { cents } = former.to()?;
    Ok(InHeader { cents, currency: format!("of version {}", former.version()) })
}

#[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, type = "Priced", version = 2, version_in = "type", upcast = into_type)]
struct InType {
    cents: i64,
}

fn into_type(former: Former<'_>) -> Result<InType, CodecError> {
    assert_eq!((former.version(), former.event().event_type().as_str()), (1, "Priced"));
    let First { cents } = former.to()?;
    Ok(InType { cents: cents * 100 })
}

#[test]
fn a_version_travels_in_a_header_or_in_the_type() {
    let old = First { cents: 5 }.to_event().build().unwrap();
    assert_eq!(old.headers().get("schema-version"), None);
    let new = InHeader { cents: 5, currency: "EUR".into() };
    let event = new.to_event().build().unwrap();
    assert_eq!((event.event_type().as_str(), event.headers().get("schema-version")), ("Priced", Some("3")));
    assert_eq!(read::<InHeader>(&event).unwrap(), new);
    assert_eq!(read::<InHeader>(&old).unwrap().currency, "of version 1");

    let event = InType { cents: 5 }.to_event().build().unwrap();
    assert_eq!((event.event_type().as_str(), event.headers().get("schema-version")), ("Priced.v2", None));
    assert_eq!(InType::routes(), [Route::from("Priced"), Route::from("Priced.v2")]);
    assert_eq!(read::<InType>(&event).unwrap(), InType { cents: 5 });
    assert_eq!(read::<InType>(&old).unwrap(), InType { cents: 500 });
}

#[test]
fn versions_that_the_type_does_not_read_are_told() {
    let third = InHeader { cents: 5, currency: "EUR".into() }.to_event().build().unwrap();
    let error = read::<First>(&third).unwrap_err().to_string();
    assert!(error.contains("version 3") && error.contains("newer"), "{error}");
    let strange = First { cents: 5 }.to_event().header("schema-version", "new").build().unwrap();
    let error = read::<First>(&strange).unwrap_err().to_string();
    assert!(error.contains("schema-version"), "{error}");
}

#[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, codec = pillarbox_core::domain::MessagePack)]
struct Packed {
    number: u32,
}

#[derive(Clone, PartialEq, prost::Message, OutboxEvent)]
#[outbox(crate = pillarbox_core, protobuf, key = number)]
struct Wired {
    #[prost(uint32, tag = "1")]
    number: u32,
    #[prost(string, tag = "2")]
    note: String,
}

#[test]
fn an_event_may_have_a_format_of_its_own() {
    let packed = Packed { number: 7 }.to_event().build().unwrap();
    assert_eq!(packed.payload().content_type(), "application/vnd.msgpack");
    assert_eq!(read::<Packed>(&packed).unwrap(), Packed { number: 7 });

    let wired = Wired { number: 7, note: "as a gift".into() };
    let event = wired.to_event().build().unwrap();
    assert_eq!((event.payload().content_type(), event.key().unwrap().as_str()), ("application/x-protobuf", "7"));
    assert_eq!(&event.payload().as_bytes()[..], b"\x08\x07\x12\x09as a gift");
    assert_eq!(read::<Wired>(&event).unwrap(), wired);
    let error = read::<Wired>(&packed).unwrap_err().to_string();
    assert!(error.contains("msgpack") && error.contains("protobuf"), "{error}");
}
