//! The connection to a running child: orders over its standard input, events over its standard output.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tintype_engine::frames::{self, Event, Fault, FrameError, HEADER_BYTES, Loaded, Message, Order, ResourceUsage};
use tintype_engine::{CancellationToken, Picture};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// How long a computing child may take to stop between two steps. The worker abandons a render a moment later.
const CANCEL_PATIENCE: Duration = Duration::from_millis(1_500);

#[derive(Debug, Clone)]
pub(super) struct Link {
    pipes: Arc<Mutex<Pipes>>,
    loaded: Arc<OnceLock<Loaded>>,
}

/// Both ends of a conversation, which handles one order at a time.
#[derive(Debug)]
pub(super) struct Pipes {
    input: ChildStdin,
    output: ChildStdout,
    orders: u32,
}

/// Why an order failed.
#[derive(Debug)]
pub(super) enum OrderError {
    /// The child has ended.
    Gone,
    /// The child sent something invalid, or nothing for too long. It must be replaced.
    Lost(String),
    /// The child failed but keeps running.
    Failed(Fault, String),
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("its process has ended"),
            Self::Lost(why) | Self::Failed(_, why) => f.write_str(why),
        }
    }
}

impl From<std::io::Error> for OrderError {
    fn from(_: std::io::Error) -> Self {
        Self::Gone
    }
}

impl From<FrameError> for OrderError {
    fn from(error: FrameError) -> Self {
        Self::Lost(error.to_string())
    }
}

impl Link {
    /// The connection to a newly started child.
    ///
    /// # Errors
    /// The child has no pipes.
    pub(super) fn new(child: &mut Child) -> Result<Self, String> {
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the engine process has no pipes".into());
        };
        let pipes = Arc::new(Mutex::new(Pipes { input, output, orders: 0 }));
        Ok(Self { pipes, loaded: Arc::default() })
    }

    /// Waits until the model is open.
    ///
    /// # Errors
    /// [`OrderError`]: it cannot be opened; the child has written the reason to its standard error.
    pub(super) async fn open(&self) -> Result<Loaded, OrderError> {
        match self.pipes.lock().await.next().await? {
            Event::Loaded(loaded) => Ok(self.loaded.get_or_init(|| loaded).clone()),
            _ => Err(OrderError::Lost("it began with something else than its model".into())),
        }
    }

    pub(super) fn loaded(&self) -> Option<&Loaded> {
        self.loaded.get()
    }

    pub(super) async fn take(&self) -> OwnedMutexGuard<Pipes> {
        self.pipes.clone().lock_owned().await
    }
}

impl Pipes {
    /// Has the child render an order, whose number this function chooses, unless `cancelled` ends first. `after` is
    /// called for each event and returns the time limit for the next one. After `gives_up` the child stops at the end
    /// of its step, however long that takes. If the future is dropped before its end, the child must be replaced.
    pub(super) async fn render(
        &mut self,
        order: Order,
        mut after: impl FnMut(Option<&Event>) -> Duration,
        gives_up: &CancellationToken,
        cancelled: impl Future<Output = ()>,
    ) -> Result<(Vec<Picture>, ResourceUsage), OrderError> {
        self.orders = self.orders.wrapping_add(1);
        let (number, size, count) = (self.orders, (order.width, order.height), order.pictures().count());
        self.input.write_all(&Message::Render(Order { number, ..order }).frame()?).await?;
        let (mut pictures, mut patience) = (Vec::with_capacity(count), after(None));
        let (mut cancelled, mut is_cancelled, mut is_given_up) = (pin!(cancelled), false, false);
        let mut limit = pin!(tokio::time::sleep(patience));
        loop {
            let Self { input, output, .. } = self;
            // A cancellation must not lose half a frame.
            let mut next = pin!(next_event(output));
            let event = loop {
                tokio::select! {
                    event = &mut next => break event?,
                    () = &mut cancelled, if !is_cancelled => {
                        is_cancelled = true;
                        // Events that arrive before the child stops don't extend its time.
                        limit.set(tokio::time::sleep(CANCEL_PATIENCE));
                        input.write_all(&Message::Cancel { order: number }.frame()?).await?;
                    }
                    () = gives_up.cancelled(), if !is_given_up && !is_cancelled => {
                        is_given_up = true;
                        input.write_all(&Message::Cancel { order: number }.frame()?).await?;
                    }
                    () = &mut limit => {
                        return Err(OrderError::Lost(match is_cancelled {
                            true => "its render was cancelled in the middle of a step".into(),
                            false => format!("nothing was heard of its render for {} s", patience.as_secs()),
                        }));
                    }
                }
            };
            let longest = after(Some(&event));
            if !is_cancelled {
                patience = longest;
                limit.set(tokio::time::sleep(patience));
            }
            match event {
                Event::Painted { picture, .. } if pictures.len() < count => {
                    if (picture.width(), picture.height()) != size {
                        return Err(OrderError::Lost("it sent a picture of another size".into()));
                    }
                    pictures.push(picture);
                }
                Event::Encoded { .. } | Event::Step { .. } | Event::Preview { .. } => {}
                Event::Done(usage) if pictures.len() == count => return Ok((pictures, usage)),
                Event::Failed { fault, message } => return Err(OrderError::Failed(fault, message)),
                Event::Loaded(_) | Event::Painted { .. } | Event::Done(_) => {
                    return Err(OrderError::Lost("it sent something that is not a valid reply".into()));
                }
            }
        }
    }

    async fn next(&mut self) -> Result<Event, OrderError> {
        next_event(&mut self.output).await
    }
}

async fn next_event(output: &mut ChildStdout) -> Result<Event, OrderError> {
    let mut header = [0; HEADER_BYTES];
    output.read_exact(&mut header).await?;
    let mut body = vec![0; frames::body_length(header)?];
    output.read_exact(&mut body).await?;
    Ok(Event::read(&body)?)
}
