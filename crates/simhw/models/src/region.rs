//! Payloads, which have no bytes in a model.

use std::marker::PhantomData;

use crate::segment::View;

/// Stands for the payload of a frame.
#[derive(Debug)]
pub(crate) struct Payload<'a>(PhantomData<&'a ()>);

impl From<View<'_>> for Payload<'_> {
    fn from(_: View<'_>) -> Self {
        Self(PhantomData)
    }
}
