//! The pages of operators: owners of an administrator's account. For everyone else they do not exist.

mod accounts;
mod audit;
mod details;
mod overview;
mod people;
mod strikes;

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;

pub use self::accounts::{account, accounts, change as change_account, change_key, change_person, grant};
pub use self::audit::audit;
pub use self::overview::{change_queue, overview};
pub use self::people::people;
pub use self::strikes::strikes;
use super::error::PageError;
use super::session::{Form, HasStudio, Visitor};
use super::sign_in::confirmation::CONFIRMATION;

/// A signed-in operator. Anyone else gets the answer of a page that does not exist.
#[derive(Debug)]
pub struct Operator(pub(super) Visitor);

async fn operator(visitor: Visitor) -> Result<Visitor, PageError> {
    let account = visitor.account().await?;
    let operator = account.is_some_and(|account| visitor.is_operator(&account));
    if operator { Ok(Visitor { operator, ..visitor }) } else { Err(PageError::not_found()) }
}

impl<S: HasStudio> FromRequestParts<S> for Operator {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, PageError> {
        operator(Visitor::from_request_parts(parts, state).await?).await.map(Self)
    }
}

/// A form that a signed-in operator sent from a page of the studio, and confirmed with the password or a code
/// ([`Visitor::confirm`]).
#[derive(Debug)]
pub struct OperatorForm(pub(super) Form);

/// An operator's form whose effect can be undone by another form, so it needs no confirmation.
#[derive(Debug)]
pub struct ReversibleForm(pub(super) Form);

impl<S: HasStudio> FromRequest<S> for ReversibleForm {
    type Rejection = PageError;

    async fn from_request(request: Request, state: &S) -> Result<Self, PageError> {
        let form = Form::from_request(request, state).await?;
        let visitor = operator(form.visitor).await?;
        Ok(Self(Form { visitor, ..form }))
    }
}

impl<S: HasStudio> FromRequest<S> for OperatorForm {
    type Rejection = PageError;

    async fn from_request(request: Request, state: &S) -> Result<Self, PageError> {
        let ReversibleForm(form) = ReversibleForm::from_request(request, state).await?;
        form.visitor.confirm(form.fields.text(CONFIRMATION)).await?;
        Ok(Self(form))
    }
}
