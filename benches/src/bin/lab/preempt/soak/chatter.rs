//! Ranks that send each other numbered messages, and the account of the received ones.

use std::sync::{Arc, Mutex};

use midplane::gang::channel::{Channel, Descriptor, SendError};
use midplane::gang::names::Rank;
use midplane::simhw::host::Host;
use midplane::simhw::rng::Rng;
use midplane::simhw::sim::SimHost;

/// Bytes of a message's number.
const NUMBER: usize = 8;

/// Counts of the messages that all ranks of a job have sent and received.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) sending: bool,
    ranks: usize,
    /// Sent messages by sender and receiver.
    sent: Vec<u64>,
    /// Next expected number, and number of received messages, by sender and receiver.
    next: Vec<u64>,
    came: Vec<u64>,
    pub(super) bytes: u64,
    /// Messages whose number was received before.
    pub(super) doubled: u64,
    /// Messages that arrived before an earlier one.
    pub(super) reordered: u64,
    /// Messages that differ from the sent ones.
    pub(super) damaged: u64,
}

impl Account {
    pub(super) fn new(ranks: u16) -> Self {
        let ranks = usize::from(ranks);
        let none = vec![0; ranks * ranks];
        Self {
            sending: true,
            ranks,
            sent: none.clone(),
            next: none.clone(),
            came: none,
            bytes: 0,
            doubled: 0,
            reordered: 0,
            damaged: 0,
        }
    }

    const fn pair(&self, from: Rank, to: Rank) -> usize {
        from.0 as usize * self.ranks + to.0 as usize
    }

    fn send(&mut self, from: Rank, to: Rank) {
        let pair = self.pair(from, to);
        self.sent[pair] += 1;
    }

    fn receive(&mut self, from: Rank, to: Rank, bytes: &[u8]) {
        let pair = self.pair(from, to);
        self.came[pair] += 1;
        self.bytes += bytes.len() as u64;
        let Some((number, body)) = bytes.split_first_chunk::<NUMBER>() else {
            self.damaged += 1;
            return;
        };
        let number = u64::from_le_bytes(*number);
        self.damaged += u64::from(body != filling(from, to, number, body.len()));
        self.doubled += u64::from(number < self.next[pair]);
        self.reordered += u64::from(number > self.next[pair]);
        self.next[pair] = self.next[pair].max(number + 1);
    }

    pub(super) fn received(&self) -> u64 {
        self.came.iter().sum()
    }

    /// Returns the number of sent messages that were not received.
    pub(super) fn lost(&self) -> u64 {
        self.sent.iter().zip(&self.came).map(|(sent, came)| sent.saturating_sub(*came)).sum()
    }

    /// Returns whether sending has ended and `rank` has received all messages for it.
    fn is_over(&self, rank: Rank) -> bool {
        let mut pairs = (0..self.ranks).map(|from| from * self.ranks + rank.index());
        !self.sending && pairs.all(|pair| self.came[pair] >= self.sent[pair])
    }
}

/// Returns the bytes that follow the number in a message.
fn filling(from: Rank, to: Rank, number: u64, length: usize) -> Vec<u8> {
    let mixed = (number ^ u64::from(from.0) << 48 ^ u64::from(to.0) << 32)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..length as u64).map(|at| (mixed.wrapping_mul(2 * at + 1) >> 56) as u8).collect()
}

/// Runs one rank: sends to all ranks, itself included, and receives, in bursts of random lengths.
pub(super) async fn chatter(
    host: SimHost,
    descriptor: Descriptor,
    account: Arc<Mutex<Account>>,
    seed: u64,
) {
    let mut channel = Channel::attach(&host, descriptor).await.expect("nobody else has it");
    let own = channel.rank();
    let mut dice = Rng::new(seed, &format!("rank {own}"));
    loop {
        let full = turn(&mut channel, &account, &mut dice);
        if account.lock().expect("nobody panics with it").is_over(own) {
            break;
        }
        // A waiting rank polls now and then whether all ranks are done.
        let most = if full { 40_000 } else { 3_000 };
        host.sleep_until(host.now().plus_nanos(dice.between(1, most))).await;
    }
    // Ranks that still receive must first take what was sent.
    while !channel.is_flushed() {
        if channel.room().await.is_err() {
            return;
        }
    }
}

/// Receives some messages, and sends one; returns `true` if there is no room for it.
fn turn(channel: &mut Channel, account: &Mutex<Account>, dice: &mut Rng) -> bool {
    let (own, ranks, most) = (channel.rank(), channel.ranks(), channel.message_bytes());
    let mut account = account.lock().expect("nobody panics with it");
    while let Some((from, bytes)) = channel.try_receive() {
        account.receive(from, own, &bytes);
        if dice.chance(0.1) {
            break;
        }
    }
    if !account.sending {
        return true;
    }
    let to = Rank(dice.below(ranks.into()) as u16);
    let number = account.sent[account.pair(own, to)];
    let mut message = number.to_le_bytes().to_vec();
    let length = dice.between(0, u64::from(most) - NUMBER as u64) as usize;
    message.extend(filling(own, to, number, length));
    match channel.try_send(to, &message) {
        Ok(()) => account.send(own, to),
        Err(SendError::Full) => return true,
        Err(other) => panic!("{other}"),
    }
    false
}
