//! The task that moves the bytes of one session between its buffers and a TCP socket, or another stream of bytes.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::Session;
use super::core::Ended;
use super::line::{Buffers, Line};
use crate::wire::tcp::{Connection, Records};

/// Most pieces of memory that one write gathers.
const GATHERED: usize = 5;
/// Most reads and writes of one turn, so that other tasks run.
const TURN: usize = 16;
/// Limits how long a close waits until the peer has received everything.
const CLOSE: Duration = Duration::from_secs(5);
/// Time without progress of the system's writes after which the peer is suspected.
const STUCK: Duration = Duration::from_secs(1);
/// Time after which memory in reserve is released, if neither direction has bytes to move then.
const TRIM: Duration = Duration::from_secs(1);

/// Moves the bytes of one session.
pub(super) struct Mover<S> {
    session: Arc<Session>,
    line: Arc<Line>,
    stream: S,
    sealed: Option<Sealed>,
    alarm: Pin<Box<Sleep>>,
    /// Purpose of the alarm, if it is set.
    alarm_for: Option<Alarm>,
    /// True if there may be memory in reserve.
    has_reserve: bool,
    /// True once the connection takes no more bytes. Those that it has received are read to their end.
    cannot_send: bool,
}

/// The purpose of an alarm.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Alarm {
    /// The system has taken nothing for [`STUCK`], although bytes wait.
    Stuck,
    /// Releases the memory in reserve.
    Trim,
}

/// The records of a connection with a key.
struct Sealed {
    records: Records,
    /// Records for the system, of which it has taken the first `written` bytes.
    outbox: Vec<u8>,
    written: usize,
}

/// The reason why the task ends.
enum Exit {
    /// The session has ended here.
    Closed,
    /// The peer or the network has ended the connection.
    Gone,
    /// The peer has sent bytes that no holder of the key sends.
    Violation,
}

impl From<io::Error> for Exit {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// Ends the session when the task ends, however that happens.
impl<S> Drop for Mover<S> {
    fn drop(&mut self) {
        // What the system has not taken will never leave.
        self.line.buffers().has_sealed = false;
        self.session.with(super::core::Core::on_wire_ended);
        self.session.shared.movers.fetch_sub(1, Ordering::AcqRel);
        self.session.shared.mover_ended.notify_waiters();
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Mover<S> {
    pub(super) fn new(session: Arc<Session>, line: Arc<Line>, connection: Connection<S>) -> Self {
        let sealed = connection.records;
        let sealed = sealed.map(|records| Sealed { records, outbox: Vec::new(), written: 0 });
        let alarm = Box::pin(tokio::time::sleep(STUCK));
        let stream = connection.stream;
        session.shared.movers.fetch_add(1, Ordering::AcqRel);
        let (alarm_for, has_reserve, cannot_send) = (None, false, false);
        Self { session, line, stream, sealed, alarm, alarm_for, has_reserve, cannot_send }
    }

    /// Moves bytes until the session or the connection ends.
    pub(super) async fn run(mut self) {
        match poll_fn(|context| self.poll(context)).await {
            Exit::Closed => {
                let _ = tokio::time::timeout(CLOSE, self.close()).await;
            }
            // Dropping the mover makes the session handle the received bytes, and end.
            Exit::Gone => {}
            Exit::Violation => self.session.with(|core| core.end(Ended::Violation)),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Exit> {
        self.line.register(context.waker());
        for _ in 0..TURN {
            let sent = if self.cannot_send { self.wait_for_rest() } else { self.send(context) };
            let sent = match sent {
                Err(Exit::Gone) if !self.cannot_send => {
                    self.cannot_send = true;
                    self.wait_for_rest()
                }
                sent => sent,
            };
            let received = self.receive(context);
            match (sent, received) {
                (Err(over), _) | (_, Err(over)) => return Poll::Ready(over),
                (Ok(Poll::Ready(true)), _) => {
                    self.has_reserve = true;
                    // The next wait for the system begins anew.
                    self.alarm_for = self.alarm_for.filter(|alarm| *alarm != Alarm::Stuck);
                }
                (_, Ok(true)) => self.has_reserve = true,
                (Ok(sent), Ok(false)) => {
                    self.await_alarm(context, sent.is_pending());
                    return Poll::Pending;
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Handles the alarm, or waits for it; `is_waiting` if bytes wait for the system.
    fn await_alarm(&mut self, context: &mut Context<'_>, is_waiting: bool) {
        let (wanted, after) = match (is_waiting, self.has_reserve) {
            (true, _) => (Some(Alarm::Stuck), STUCK),
            (false, true) => (Some(Alarm::Trim), TRIM),
            (false, false) => (None, TRIM),
        };
        if self.alarm_for != wanted {
            self.alarm_for = wanted;
            self.alarm.as_mut().reset(Instant::now() + after);
        }
        if wanted.is_none() || self.alarm.as_mut().poll(context).is_pending() {
            return;
        }
        let mut buffers = self.line.buffers();
        if is_waiting {
            buffers.is_stuck = true;
        } else {
            buffers.trim();
            self.has_reserve = false;
            self.alarm_for = None;
        }
    }

    /// Returns whether the received bytes are still wanted, once nothing can be sent.
    fn wait_for_rest(&self) -> Result<Poll<bool>, Exit> {
        if self.line.buffers().is_closing() { Err(Exit::Gone) } else { Ok(Poll::Pending) }
    }

    /// Sends part of the waiting bytes; returns whether there were any. Pending if the system took none.
    fn send(&mut self, context: &mut Context<'_>) -> Result<Poll<bool>, Exit> {
        let mut buffers = self.line.buffers();
        let (sent, is_awaited) = match &mut self.sealed {
            None if buffers.outgoing.is_empty() => (Poll::Ready(Ok(0)), false),
            None => {
                let pieces = buffers.outgoing.pieces::<GATHERED>();
                let sent = Pin::new(&mut self.stream).poll_write_vectored(context, &pieces);
                let is_awaited = matches!(sent, Poll::Ready(Ok(bytes)) if buffers.has_sent(bytes));
                (sent, is_awaited)
            }
            Some(sealed) => {
                let is_awaited = sealed.fill_outbox(&mut buffers);
                let sent = sealed.send(&mut self.stream, context);
                buffers.has_sealed = sealed.written < sealed.outbox.len();
                (sent, is_awaited)
            }
        };
        if is_awaited {
            drop(buffers);
            self.session.with(|core| core.is_dirty = true);
            buffers = self.line.buffers();
        }
        match sent {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(Err(error)) => Err(error.into()),
            Poll::Ready(Ok(0)) if buffers.is_closing() => Err(Exit::Closed),
            Poll::Ready(Ok(bytes)) => {
                buffers.is_stuck = false;
                Ok(Poll::Ready(bytes > 0))
            }
        }
    }

    /// Receives bytes; returns whether there were any.
    fn receive(&mut self, context: &mut Context<'_>) -> Result<bool, Exit> {
        let mut buffers = self.line.buffers();
        if !buffers.wants_more() {
            return Ok(false);
        }
        let memory = match &mut self.sealed {
            None => buffers.incoming.room(),
            Some(sealed) => sealed.records.room(),
        };
        let mut buffer = ReadBuf::new(memory);
        match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
            Poll::Pending => return Ok(false),
            Poll::Ready(read) => read?,
        }
        let count = buffer.filled().len();
        if count == 0 {
            return Err(Exit::Gone);
        }
        match &mut self.sealed {
            None => buffers.incoming.add(count),
            Some(Sealed { records, .. }) => {
                let opened = records.open(count, |plain| buffers.incoming.write(plain));
                opened.map_err(|_| Exit::Violation)?;
            }
        }
        drop(buffers);
        self.session.with(|core| core.is_dirty = true);
        Ok(true)
    }

    /// Ends the connection after all written bytes; reads until the peer has ended it too, so that nothing is cut off.
    async fn close(&mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        let mut rest = [0; 1_024];
        while self.stream.read(&mut rest).await? > 0 {}
        Ok(())
    }
}

impl Sealed {
    /// Seals the first waiting bytes, once the system has taken those sealed before. Returns whether a writer has waited for
    /// their room.
    fn fill_outbox(&mut self, buffers: &mut Buffers) -> bool {
        let plain = buffers.outgoing.readable();
        if self.written < self.outbox.len() || plain.is_empty() {
            return false;
        }
        self.outbox.clear();
        self.written = 0;
        self.records.seal(plain, &mut self.outbox);
        let count = plain.len();
        buffers.has_sent(count)
    }

    /// Sends part of the sealed bytes; 0 if there are none.
    fn send(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let rest = &self.outbox[self.written..];
        if rest.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let sent = Pin::new(stream).poll_write(context, rest);
        if let Poll::Ready(Ok(bytes)) = sent {
            self.written += bytes;
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use midplane_simhw::seal::Key;
    use midplane_simhw::shm::rings::RingPair;
    use tokio::time::sleep;

    use super::*;
    use crate::session::Sessions;
    use crate::session::piped::Piped;
    use crate::wire::tcp::{Config, accept_over, connect_over};

    #[test]
    fn a_peer_is_suspected_while_it_takes_nothing_and_not_while_it_is_slow() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(be_slow_and_stuck_in_turn());
    }

    async fn be_slow_and_stuck_in_turn() {
        let (sessions, _driver) = Sessions::new(None, None).unwrap();
        let [pair, _other] = RingPair::local(1 << 16).unwrap();
        let session = sessions.over_rings(pair, true).unwrap();
        let (line, (stream, mut peer)) = (Arc::new(Line::default()), tokio::io::duplex(1_024));
        line.buffers().write(&[], &[IoSlice::new(&[7; 200_000])]);
        let connection = Connection { stream, records: None, id: 0 };
        tokio::spawn(Mover::new(session, Arc::clone(&line), connection).run());
        let (mut bytes, pause) = ([0; 1_024], Duration::from_millis(20));
        for _ in 0..2 {
            let slow_until = Instant::now() + STUCK + STUCK / 2;
            while Instant::now() < slow_until {
                peer.read_exact(&mut bytes).await.unwrap();
                sleep(pause).await;
                assert!(!line.buffers().is_stuck, "it takes bytes");
            }
            sleep(STUCK + STUCK / 2).await;
            assert!(line.buffers().is_stuck, "it takes nothing");
            peer.read_exact(&mut bytes).await.unwrap();
            sleep(pause).await;
            assert!(!line.buffers().is_stuck, "it takes bytes again");
        }
    }

    /// Regression: sealed bytes that the system had not taken yet counted as sent.
    #[test]
    fn sealed_bytes_are_flushed_once_the_system_has_taken_them() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let (sessions, _driver) = Sessions::new(None, None).unwrap();
            let [pair, _other] = RingPair::local(1 << 16).unwrap();
            let session = sessions.over_rings(pair, true).unwrap();
            let config = Config::default().key(Some(Key::new(1, [3; 32])));
            let (one, other) = tokio::io::duplex(1_024);
            let (connection, peer) =
                tokio::join!(connect_over(one, &config), accept_over(other, &config));
            let (line, mut peer) = (Arc::new(Line::default()), peer.unwrap().stream);
            let wire = Piped::over_line(Arc::clone(&line));
            line.buffers().write(&[], &[IoSlice::new(&[7; 10_000])]);
            tokio::spawn(Mover::new(session, Arc::clone(&line), connection.unwrap()).run());
            while !line.buffers().outgoing.is_empty() {
                tokio::task::yield_now().await;
            }
            // The stream holds up to 1,024 bytes.
            let mut bytes = [0; 1_024];
            for _ in 0..9 {
                assert!(!wire.is_flushed(), "more wait than the stream holds");
                peer.read_exact(&mut bytes).await.unwrap();
            }
            while !wire.is_flushed() {
                tokio::task::yield_now().await;
            }
        });
    }
}
