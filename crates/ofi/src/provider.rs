//! Lists libfabric's offers on this host, and chooses one of them.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::abi::constants::{ENODATA, MR_LOCAL, PROGRESS_AUTO, SOURCE};
use crate::ffi::{CallError, Filter, InfoRef, Infos, OwnedInfo, Unavailable, library};

/// A provider's offer: reliable datagram endpoints that keep messages in order.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Provider {
    /// The provider's name, with those of the layers above it: `efa`, `verbs;ofi_rxm`.
    pub name: String,
    /// The network, as the provider names it.
    pub fabric: String,
    /// The device, as the provider names it.
    pub domain: String,
    /// Longest message in bytes.
    pub max_message: usize,
    /// Longest message in bytes that the sending call copies.
    pub inject: usize,
    /// True if the provider reports the sender of each message.
    pub has_source: bool,
    /// True if memory must be registered before the provider uses it.
    pub registers: bool,
    /// True if the provider progresses without calls of this process.
    pub progresses: bool,
}

/// Returns the version of libfabric: its major and minor number.
///
/// # Errors
/// [`Unavailable`].
pub fn version() -> Result<(u32, u32), Unavailable> {
    library().map(|library| library.version())
}

/// Lists the offers that satisfy a choice, in libfabric's order of preference: one for each device and address.
///
/// # Errors
/// [`OpenError`].
pub fn providers(choice: &Choice) -> Result<Vec<Provider>, OpenError> {
    match choice.infos() {
        Ok(infos) => Ok(infos.iter().map(describe).collect()),
        Err(OpenError::NoProvider(_)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

pub(crate) fn describe(info: InfoRef<'_>) -> Provider {
    let name = info.provider_name();
    // ofi_rxd 1.17 reports a wrong sender if there are several peers.
    let is_told_right = !name.ends_with("ofi_rxd");
    Provider {
        fabric: info.fabric_name(),
        domain: info.domain_name(),
        max_message: info.endpoint().max_msg_size,
        inject: info.transmit().inject_size,
        has_source: is_told_right && info.caps() & SOURCE != 0,
        registers: info.domain().mr_mode & MR_LOCAL != 0,
        progresses: info.domain().data_progress == PROGRESS_AUTO,
        name,
    }
}

/// The reason why there is no endpoint.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// libfabric can't be used.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// No provider fits the choice.
    #[error(
        "no provider of libfabric offers {0} with reliable datagram endpoints; `midplane doctor` lists those that do"
    )]
    NoProvider(Choice),
    /// A call of libfabric has failed.
    #[error("libfabric can't open an endpoint: {0}")]
    Failed(#[from] CallError),
    /// The system has refused a timer or a descriptor.
    #[error("the system refuses: {0}")]
    System(#[from] std::io::Error),
    /// The provider's longest message is shorter than a frame: both in bytes.
    #[error("the provider's messages have at most {0} bytes, and frames {1}")]
    TooLong(usize, usize),
}

/// Chooses a provider. The default is libfabric's preference.
///
/// The text form is `PROVIDER[/DOMAIN][@ADDRESS]`: `efa`, `tcp/eth1`, `tcp@10.0.0.1`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Choice {
    provider: Option<String>,
    domain: Option<String>,
    source: Option<String>,
}

impl Choice {
    /// Creates a choice that any provider satisfies.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// Requires a provider of this name; libfabric may add layers to it.
    #[must_use]
    pub fn provider(mut self, name: impl Into<String>) -> Self {
        self.provider = Some(name.into());
        self
    }

    /// Requires a device of this name.
    #[must_use]
    pub fn domain(mut self, name: impl Into<String>) -> Self {
        self.domain = Some(name.into());
        self
    }

    /// Sends from this local address: an IP address, for providers on IP networks.
    #[must_use]
    pub fn source(mut self, address: impl Into<String>) -> Self {
        self.source = Some(address.into());
        self
    }

    fn infos(&self) -> Result<Infos, OpenError> {
        let library = library()?;
        let mut filter = Filter {
            provider: self.provider.as_deref(),
            domain: self.domain.as_deref(),
            source: self.source.as_deref(),
            has_source: true,
        };
        let mut found = Infos::find(library, &filter);
        if found.as_ref().is_err_and(|error| error.code() == ENODATA) {
            filter.has_source = false;
            found = Infos::find(library, &filter);
        }
        found.map_err(|error| match error.code() {
            ENODATA => OpenError::NoProvider(self.clone()),
            _ => OpenError::Failed(error),
        })
    }

    /// Returns libfabric's preferred offer whose messages are at least as long as frames.
    pub(crate) fn offer(&self, frame_bytes: usize) -> Result<OwnedInfo, OpenError> {
        let infos = self.infos()?;
        let longest = infos.iter().map(|info| info.endpoint().max_msg_size).max().unwrap_or(0);
        infos
            .choose(|info| info.endpoint().max_msg_size >= frame_bytes)
            .ok_or(OpenError::TooLong(longest, frame_bytes))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.provider.as_deref().unwrap_or("any"))?;
        self.domain.iter().try_for_each(|domain| write!(f, "/{domain}"))?;
        self.source.iter().try_for_each(|source| write!(f, "@{source}"))
    }
}

/// The error of a text that is not a choice.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error(
    "a choice of a libfabric provider is PROVIDER[/DOMAIN][@ADDRESS], like tcp@10.0.0.1; PROVIDER may be `any`"
)]
pub struct NoChoice;

impl FromStr for Choice {
    type Err = NoChoice;

    fn from_str(text: &str) -> Result<Self, NoChoice> {
        let (rest, source) = match text.split_once('@') {
            Some((rest, source)) => (rest, Some(source)),
            None => (text, None),
        };
        let (provider, domain) = match rest.split_once('/') {
            Some((provider, domain)) => (provider, Some(domain)),
            None => (rest, None),
        };
        let is_wrong = |part: &str| part.is_empty() || part.contains('\0');
        if [Some(provider), domain, source].into_iter().flatten().any(is_wrong) {
            return Err(NoChoice);
        }
        Ok(Self {
            provider: (provider != "any").then(|| provider.into()),
            domain: domain.map(Into::into),
            source: source.map(Into::into),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_as_it_is_shown() {
        for text in ["tcp", "tcp;ofi_rxm", "efa/rdmap0s6-rdm", "tcp@127.0.0.1", "tcp/lo@::1", "any"]
        {
            assert_eq!(text.parse::<Choice>().unwrap().to_string(), text);
        }
        assert_eq!("any".parse(), Ok(Choice::any()));
        for text in ["", "@", "tcp/", "tcp@", "/lo", "t\0"] {
            assert_eq!(text.parse::<Choice>(), Err(NoChoice), "{text:?}");
        }
    }
}
