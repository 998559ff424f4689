//! `#[handlers]` on an `impl`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    Attribute, Error, FnArg, Ident, ImplItem, ImplItemFn, ItemImpl, LitStr, Meta, Path, Result, Token, Type,
    ext::IdentExt as _,
    parse::{ParseStream, Parser as _},
    parse_quote,
    spanned::Spanned as _,
};

use crate::{
    attribute::unknown,
    retry::{policy, time},
};

pub(crate) fn expand(attribute: TokenStream, mut item: ItemImpl) -> Result<TokenStream> {
    let root = root(attribute)?;
    let private = quote!(#root::__private);
    if let Some((_, of, _)) = &item.trait_ {
        return Err(Error::new_spanned(of, "`#[handlers]` stands on an impl of a type's own methods, not of a trait"));
    }
    if !item.generics.params.is_empty() {
        let message = "handlers of a generic type have no name that stays: write an impl for one type";
        return Err(Error::new_spanned(&item.generics, message));
    }
    let mut methods = Vec::new();
    for part in &mut item.items {
        if let ImplItem::Fn(method) = part
            && let Some(found) = Method::take(method, &private)?
        {
            methods.push(found);
        }
    }
    if methods.iter().all(|method| matches!(method.role, Role::Fallback { .. })) {
        let message = "there is no handler here: put `#[handler]` on the methods that take events";
        return Err(Error::new_spanned(&item.self_ty, message));
    }
    let calls = calls(&methods, &item.self_ty, &private)?;
    let of = &item.self_ty;
    Ok(quote! {
        #item

        impl #private::HandlerSet for #of {
            fn handlers(this: ::std::sync::Arc<Self>) -> #private::Handlers {
                #private::Handlers::new() #(#calls)*
            }
        }

        impl #private::IntoHandlers for #of {
            fn into_handlers(self) -> #private::Handlers {
                <Self as #private::HandlerSet>::handlers(::std::sync::Arc::new(self))
            }
        }
    })
}

fn root(attribute: TokenStream) -> Result<Path> {
    if attribute.is_empty() {
        return Ok(parse_quote!(::pillarbox));
    }
    let parser = |input: ParseStream<'_>| {
        let name = input.call(Ident::parse_any)?;
        if name != "crate" {
            return Err(Error::new(name.span(), unknown(&name.to_string(), &["crate"])));
        }
        input.parse::<Token![=]>()?;
        input.parse::<Path>()
    };
    parser.parse2(attribute)
}

/// A method that takes events.
struct Method {
    name: Ident,
    event: Type,
    /// Whether it also takes metadata, or the failure.
    second: Option<Type>,
    role: Role,
}

enum Role {
    Handler {
        id: Option<LitStr>,
        destination: Option<LitStr>,
        timeout: Option<TokenStream>,
        retry: Option<TokenStream>,
    },
    Fallback {
        of: Option<Ident>,
    },
}

impl Method {
    /// Takes Pillarbox's attributes off a method, if it has any.
    fn take(method: &mut ImplItemFn, private: &TokenStream) -> Result<Option<Self>> {
        let is_ours =
            |attribute: &Attribute| ["handler", "fallback", "retry"].iter().any(|name| attribute.path().is_ident(name));
        let ours: Vec<Attribute> = method.attrs.extract_if(.., |attribute| is_ours(attribute)).collect();
        let Some(first) = ours.first() else { return Ok(None) };
        let mut role = None;
        let mut retry = None;
        for attribute in &ours {
            if attribute.path().is_ident("retry") {
                if retry.replace(policy(attribute, private)?).is_some() {
                    return Err(Error::new_spanned(attribute, "`#[retry]` is set twice: leave one of them out"));
                }
                continue;
            }
            let read = if attribute.path().is_ident("handler") { handler(attribute)? } else { fallback(attribute)? };
            if role.replace(read).is_some() {
                let message = "a method is one handler or one fallback: leave one of the attributes out";
                return Err(Error::new_spanned(attribute, message));
            }
        }
        let role = match (role, retry) {
            (Some(Role::Handler { id, destination, timeout, .. }), retry) => {
                Role::Handler { id, destination, timeout, retry }
            }
            (Some(role @ Role::Fallback { .. }), None) => role,
            (Some(Role::Fallback { .. }), Some(_)) => {
                return Err(Error::new_spanned(first, "a fallback runs once: `#[retry]` is for handlers"));
            }
            (None, _) => return Err(Error::new_spanned(first, "`#[retry]` stands on a handler: add `#[handler]`")),
        };
        let (event, second) = arguments(method, &role)?;
        Ok(Some(Self { name: method.sig.ident.clone(), event, second, role }))
    }
}

fn handler(attribute: &Attribute) -> Result<Role> {
    let (mut id, mut destination, mut timeout) = (None, None, None);
    if !matches!(attribute.meta, Meta::Path(_)) {
        attribute.parse_args_with(|input: ParseStream<'_>| {
            while !input.is_empty() {
                let name = input.call(Ident::parse_any)?;
                let twice = match name.to_string().as_str() {
                    "id" => id.replace(text(input, "an id needs a name")?).is_some(),
                    "destination" => destination.replace(text(input, "a destination needs a name")?).is_some(),
                    "timeout" => timeout.replace(time(input, &name)?).is_some(),
                    other => return Err(Error::new(name.span(), unknown(other, &["id", "destination", "timeout"]))),
                };
                if twice {
                    return Err(Error::new(name.span(), format!("`{name}` is set twice: leave one of them out")));
                }
                if !input.is_empty() {
                    input.parse::<Token![,]>()?;
                }
            }
            Ok(())
        })?;
    }
    Ok(Role::Handler { id, destination, timeout, retry: None })
}

/// A text behind a `=`, which is not empty.
fn text(input: ParseStream<'_>, needed: &str) -> Result<LitStr> {
    input.parse::<Token![=]>()?;
    let text: LitStr = input.parse()?;
    if text.value().is_empty() {
        return Err(Error::new(text.span(), needed));
    }
    Ok(text)
}

fn fallback(attribute: &Attribute) -> Result<Role> {
    if matches!(attribute.meta, Meta::Path(_)) {
        return Ok(Role::Fallback { of: None });
    }
    let of = attribute.parse_args_with(|input: ParseStream<'_>| {
        let name = input.call(Ident::parse_any)?;
        if name.unraw() != "of" {
            return Err(Error::new(name.span(), unknown(&name.to_string(), &["of"])));
        }
        input.parse::<Token![=]>()?;
        input.parse::<Ident>()
    })?;
    Ok(Role::Fallback { of: Some(of) })
}

/// The event that a method takes, and what it takes beside it.
fn arguments(method: &ImplItemFn, role: &Role) -> Result<(Type, Option<Type>)> {
    let (what, second) = match role {
        Role::Handler { .. } => ("handler", "metadata: Metadata"),
        Role::Fallback { .. } => ("fallback", "failed: Failed"),
    };
    let name = &method.sig.ident;
    let shape = format!("a {what} is `async fn {name}(&self, event: SomeEvent)`, or with `{second}` as well");
    if method.sig.asyncness.is_none() {
        return Err(Error::new_spanned(method.sig.fn_token, format!("a {what} is async: {shape}")));
    }
    if !method.sig.generics.params.is_empty() {
        return Err(Error::new_spanned(&method.sig.generics, format!("a {what} can't be generic: {shape}")));
    }
    let mut arguments = method.sig.inputs.iter();
    match arguments.next() {
        Some(FnArg::Receiver(receiver)) if receiver.reference.is_some() && receiver.mutability.is_none() => {}
        _ => return Err(Error::new(method.sig.inputs.span(), format!("a {what} takes `&self`: {shape}"))),
    }
    let mut types = Vec::new();
    for argument in arguments {
        let FnArg::Typed(argument) = argument else { continue };
        if let Type::Reference(reference) = &*argument.ty {
            let message = format!("a {what} takes its arguments by value: {shape}");
            return Err(Error::new_spanned(reference, message));
        }
        types.push((*argument.ty).clone());
    }
    match <[Type; 1]>::try_from(types) {
        Ok([event]) => Ok((event, None)),
        Err(types) => match <[Type; 2]>::try_from(types) {
            Ok([event, second]) => Ok((event, Some(second))),
            Err(_) => Err(Error::new(method.sig.inputs.span(), shape)),
        },
    }
}

fn calls(methods: &[Method], of: &Type, private: &TokenStream) -> Result<Vec<TokenStream>> {
    let mut calls = Vec::new();
    for method in methods {
        let closure = closure(method);
        match &method.role {
            Role::Handler { id, destination, timeout, retry } => {
                let id = id.as_ref().map_or_else(
                    || {
                        let name = method.name.to_string();
                        quote!(::std::concat!(::std::module_path!(), "::", ::std::stringify!(#of), "::", #name))
                    },
                    |id| quote!(#id),
                );
                let destination = destination.as_ref().map(|name| quote!(.destination(#name)));
                let timeout = timeout.as_ref().map(|timeout| quote!(.timeout(#timeout)));
                let retry = retry.as_ref().map(|retry| quote!(.retry(#retry)));
                let fallback = own_fallback(methods, method)?.map(|fallback| {
                    let closure = self::closure(fallback);
                    quote!(.fallback(#closure))
                });
                calls
                    .push(quote!(.handler(#private::handler(#closure).id(#id) #destination #timeout #retry #fallback)));
            }
            Role::Fallback { of: None } => calls.push(quote!(.fallback(#closure))),
            Role::Fallback { of: Some(handler) } => {
                let is_handler = |other: &Method| other.name == *handler && matches!(other.role, Role::Handler { .. });
                if !methods.iter().any(is_handler) {
                    let message = format!("`{handler}` is not a handler of this impl");
                    return Err(Error::new(handler.span(), message));
                }
            }
        }
    }
    Ok(calls)
}

/// The fallback that names a handler.
fn own_fallback<'a>(methods: &'a [Method], handler: &Method) -> Result<Option<&'a Method>> {
    let names = |method: &&Method| matches!(&method.role, Role::Fallback { of: Some(of) } if *of == handler.name);
    let mut found = methods.iter().filter(names);
    let first = found.next();
    match found.next() {
        Some(second) => {
            let message = format!("`{}` has a fallback already: a handler has one", handler.name);
            Err(Error::new(second.name.span(), message))
        }
        None => Ok(first),
    }
}

fn closure(Method { name, event, second, .. }: &Method) -> TokenStream {
    let (parameter, argument) = match second {
        Some(second) => (quote!(, second: #second), quote!(, second)),
        None => (quote!(), quote!()),
    };
    quote! {{
        let this = ::std::sync::Arc::clone(&this);
        move |event: #event #parameter| {
            let this = ::std::sync::Arc::clone(&this);
            async move { this.#name(event #argument).await }
        }
    }}
}
