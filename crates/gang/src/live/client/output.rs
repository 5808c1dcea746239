//! Writes the output of a job's ranks to this process's standard streams.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use super::Output;
use crate::live::link::{Frame, Receiver, Stream};
use crate::node_core::message::{Over, Reply};

/// Bytes of a line with a label, after which the line is split.
const LONGEST_LINE: usize = 64 << 10;

/// An event of the task that writes a job's output.
pub(super) enum Written {
    /// Output could not be written. Reported once.
    Failed(io::Error),
    /// The job has ended; `None` if the daemon exits before that.
    Over(Option<Over>),
}

/// Writes the ranks' output until the job ends. After an error, output is still received, so that no rank blocks.
pub(super) async fn write_out(
    receiver: Receiver,
    how: Output,
    labels: Option<SharedLabels>,
    events: mpsc::Sender<Written>,
) {
    let over = write_until_over(receiver, how, labels, &events).await;
    let _ = events.send(Written::Over(over)).await;
}

async fn write_until_over(
    mut receiver: Receiver,
    how: Output,
    labels: Option<SharedLabels>,
    events: &mpsc::Sender<Written>,
) -> Option<Over> {
    let mut is_reported = false;
    loop {
        match receiver.receive().await.ok()?? {
            Frame::Data { rank, stream, bytes } => {
                let labelled = match &labels {
                    Some(labels) => lock(labels).add(rank, stream, &bytes),
                    None => bytes.into(),
                };
                if let Err(error) = print(stream, how, &labelled).await
                    && !std::mem::replace(&mut is_reported, true)
                {
                    let _ = events.send(Written::Failed(error)).await;
                }
            }
            frame => {
                if let Some(Reply::Over(over)) = frame.parse() {
                    return Some(over);
                }
            }
        }
    }
}

/// Writes a rank's output.
pub(super) async fn print(stream: Stream, how: Output, bytes: &[u8]) -> io::Result<()> {
    if stream == Stream::Error || how.to_error {
        let mut error = tokio::io::stderr();
        error.write_all(bytes).await?;
        error.flush().await
    } else {
        let mut output = tokio::io::stdout();
        output.write_all(bytes).await?;
        output.flush().await
    }
}

/// Labels that outlive a connection to the root.
pub(super) type SharedLabels = Arc<Mutex<Labels>>;

fn lock(labels: &SharedLabels) -> std::sync::MutexGuard<'_, Labels> {
    labels.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn rest_of(labels: &SharedLabels) -> Vec<(Stream, Vec<u8>)> {
    lock(labels).take_rest()
}

/// Prefixes whole lines with their rank.
#[derive(Default)]
pub(super) struct Labels {
    /// Incomplete last lines, by rank and by whether they are of standard error.
    begun: std::collections::BTreeMap<(u16, bool), Vec<u8>>,
}

impl Labels {
    fn add(&mut self, rank: u16, stream: Stream, bytes: &[u8]) -> Vec<u8> {
        let begun = self.begun.entry((rank, stream == Stream::Error)).or_default();
        let mut out = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            begun.extend_from_slice(part);
            let is_whole = part.ends_with(b"\n");
            if is_whole || begun.len() >= LONGEST_LINE {
                out.extend_from_slice(format!("[{rank}] ").as_bytes());
                out.append(begun);
                out.extend_from_slice(if is_whole { b"" } else { b"\n" });
            }
        }
        out
    }

    /// Returns the last lines that no newline has ended.
    fn take_rest(&mut self) -> Vec<(Stream, Vec<u8>)> {
        let begun = std::mem::take(&mut self.begun).into_iter();
        let lines = begun.filter(|(_, line)| !line.is_empty()).map(|((rank, is_error), line)| {
            let stream = if is_error { Stream::Error } else { Stream::Output };
            (stream, [format!("[{rank}] ").as_bytes(), &line, b"\n"].concat())
        });
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_labels_keep_their_rest_and_are_split_if_too_long() {
        let mut labels = Labels::default();
        assert_eq!(labels.add(0, Stream::Output, b"a\nb"), b"[0] a\n");
        assert_eq!(labels.add(1, Stream::Error, b"c"), b"");
        assert_eq!(labels.add(2, Stream::Output, b"d\n"), b"[2] d\n");
        let rest = [(Stream::Output, b"[0] b\n".to_vec()), (Stream::Error, b"[1] c\n".to_vec())];
        assert_eq!(labels.take_rest(), rest);
        assert_eq!(labels.take_rest(), []);
        let long = labels.add(3, Stream::Output, &[b'x'; LONGEST_LINE]);
        assert!(long.starts_with(b"[3] xx") && long.ends_with(b"x\n"));
        assert_eq!(labels.take_rest(), []);
    }
}
