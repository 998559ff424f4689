//! Where a value comes from: a field, a field of a field, or a method.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Error, Expr, ExprCall, ExprField, ExprLit, ExprMethodCall, Fields, Lit, Result, spanned::Spanned};

const SHAPE: &str = "name a field, a field of a field or a method, as in `order_id`, `customer.id` or `key()`";

/// The fields of a struct or a variant, as generated code has them at hand.
pub(crate) struct Scope<'a> {
    /// The type or variant, for messages.
    pub(crate) name: String,
    pub(crate) fields: &'a Fields,
}

impl Scope<'_> {
    /// A pattern that binds every field, by its name or as `field_0`.
    pub(crate) fn pattern(&self) -> TokenStream {
        match self.fields {
            Fields::Named(fields) => {
                let names = fields.named.iter().filter_map(|field| field.ident.as_ref());
                quote!({ #(#names,)* })
            }
            Fields::Unnamed(fields) => {
                let names = (0..fields.unnamed.len()).map(binding);
                quote!(( #(#names,)* ))
            }
            Fields::Unit => quote!(),
        }
    }

    /// The value as an expression over what [`pattern`](Self::pattern) binds, and over `self`.
    pub(crate) fn value(&self, place: &Expr) -> Result<TokenStream> {
        match place {
            Expr::Path(path) => {
                let name = path.path.get_ident().ok_or_else(|| Error::new(place.span(), SHAPE))?;
                self.field(&name.to_string(), name.span())?;
                Ok(quote!(#name))
            }
            Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => {
                let index: usize = number.base10_parse()?;
                self.field(&index.to_string(), number.span())?;
                Ok(binding(index).into_token_stream())
            }
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => {
                let message = format!("without the quotes: `{}`; {SHAPE}", text.value());
                Err(Error::new(text.span(), message))
            }
            Expr::Field(ExprField { base, member, .. }) => {
                let base = self.value(base)?;
                Ok(quote_spanned!(place.span()=> #base.#member))
            }
            Expr::MethodCall(ExprMethodCall { receiver, method, args, .. }) => {
                let receiver = self.value(receiver)?;
                Ok(quote_spanned!(place.span()=> #receiver.#method(#args)))
            }
            Expr::Call(ExprCall { func, args, .. }) => {
                let Expr::Path(path) = &**func else { return Err(Error::new(func.span(), SHAPE)) };
                let method = path.path.get_ident().ok_or_else(|| Error::new(func.span(), SHAPE))?;
                Ok(quote_spanned!(place.span()=> self.#method(#args)))
            }
            _ => Err(Error::new(place.span(), SHAPE)),
        }
    }

    fn field(&self, name: &str, span: Span) -> Result<()> {
        let names = self.names();
        if names.iter().any(|known| known == name) {
            return Ok(());
        }
        let has = match names.as_slice() {
            [] => "it has no fields".to_owned(),
            names => format!("it has `{}`", names.join("`, `")),
        };
        let scope = &self.name;
        Err(Error::new(span, format!("`{scope}` has no field `{name}`: {has}; a method is written `{name}()`")))
    }

    fn names(&self) -> Vec<String> {
        let named = |(index, field): (usize, &syn::Field)| match &field.ident {
            Some(name) => name.to_string(),
            None => index.to_string(),
        };
        self.fields.iter().enumerate().map(named).collect()
    }
}

fn binding(index: usize) -> syn::Ident {
    quote::format_ident!("field_{index}")
}
