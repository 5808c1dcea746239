//! Payloads without bytes.

use std::marker::PhantomData;

use crate::segment::View;

/// A payload.
#[derive(Debug)]
pub(crate) struct Payload<'a>(PhantomData<&'a ()>);

impl From<View<'_>> for Payload<'_> {
    fn from(_: View<'_>) -> Self {
        Self(PhantomData)
    }
}
