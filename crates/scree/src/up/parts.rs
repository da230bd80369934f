//! [`Up`]: the controller and the agent that run in this process, and their listeners.

use std::net::SocketAddr;
use std::sync::Arc;

use agent::Agent;
use api::Profile;
use control::http::https::HttpsListener;
use control::{Control, http};
use metrics::Monitor;
use tokio::sync::watch;
use tokio::task::JoinSet;
use world::{World, host};

use super::renewal::{RENEW_EVERY, keep_renewed};
use super::settings::Settings;
use crate::commands::Failure;
use crate::monitoring;
use crate::tls_files::ApiTls;

/// The parts of this process.
pub(super) struct Up {
    pub control: Option<Control>,
    pub agent: Option<Agent>,
    /// Tasks that serve the API and renew certificates until `stop` is set.
    pub api: JoinSet<()>,
    /// The address of the API over TLS.
    pub address: Option<SocketAddr>,
    pub stop: watch::Sender<bool>,
}

impl Up {
    pub async fn start(
        world: World,
        settings: Settings,
        monitor: &Monitor,
    ) -> Result<Self, Failure> {
        let mut up = Self {
            control: None,
            agent: None,
            api: JoinSet::new(),
            address: None,
            stop: watch::Sender::new(false),
        };
        if let Some(settings) = settings.control {
            let control = Control::start(world.clone(), settings)
                .await
                .map_err(|error| Failure::of(&error))?;
            up.serve_here(&control)?;
            monitor.add(Arc::new(control.clone()));
            up.control = Some(control);
        }
        if let Some(identity) = settings.identity {
            monitoring::note_identity(monitor, &identity.profile);
            let note = {
                let monitor = monitor.clone();
                move |profile: &Profile| monitoring::note_identity(&monitor, profile)
            };
            let renewing = keep_renewed(world.clone(), identity, note);
            let stopped = up.stopped();
            up.api.spawn(async {
                tokio::select! {
                    () = renewing => {}
                    () = stopped => {}
                }
            });
        }
        if let Some(settings) = settings.agent {
            let agent = Agent::start(world.clone(), settings).await;
            let agent = agent.map_err(|error| Failure::of(&error))?;
            monitor.add(Arc::new(agent.clone()));
            up.agent = Some(agent);
        }
        if let Some(control) = up.control.clone() {
            control.set_open(true);
            if let Some((at, tls)) = settings.listen {
                up.serve_elsewhere(world, control, (at, tls), monitor.clone())?;
            }
        }
        Ok(up)
    }

    fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stop = self.stop.subscribe();
        async move {
            let _ = stop.wait_for(|stop| *stop).await;
        }
    }

    /// Serves the API on the socket in the data directory.
    fn serve_here(&mut self, control: &Control) -> Result<(), Failure> {
        let socket = control.folder().api_socket();
        let listener = http::listen(&socket).map_err(|error| {
            Failure::new(format!("cannot listen at {}: {error}", socket.display()))
        })?;
        let serving = http::serve(control.clone(), listener, self.stopped());
        self.api.spawn(async {
            if let Err(error) = serving.await {
                tracing::error!(%error, "controller stopped serving API on local socket");
            }
        });
        Ok(())
    }

    /// Serves the API over TLS, with a certificate that is renewed in time.
    fn serve_elsewhere(
        &mut self,
        world: World,
        control: Control,
        (at, api_tls): (SocketAddr, ApiTls),
        monitor: Monitor,
    ) -> Result<(), Failure> {
        let listener = HttpsListener::bind(at)
            .map_err(|error| Failure::new(format!("cannot listen at {at}: {error}")))?;
        self.address = Some(listener.address());
        let clock = Arc::clone(&world.clock);
        let every = api_tls.renew_every(RENEW_EVERY);
        let make = move |control: &Control| {
            let made = control.parties().server_tls(&api_tls.read(&world)?);
            made.map_err(|error| Failure::of(&error))
        };
        let (first, ends) = make(&control)?;
        monitor.set_certificate("server", ends);
        let (tls, newest) = watch::channel(first);
        let router = http::router(control.clone());
        let serving = listener.serve(router, newest, clock, self.stopped());
        self.api.spawn(async move {
            let renewing = async {
                let mut ticks = host::ticks(every);
                ticks.tick().await;
                loop {
                    ticks.tick().await;
                    match make(&control) {
                        Ok((config, ends)) => {
                            tls.send_replace(config);
                            monitor.set_certificate("server", ends);
                        }
                        Err(error) => tracing::error!(%error, "controller could not renew server certificate and will retry"),
                    }
                }
            };
            tokio::select! {
                () = serving => {}
                () = renewing => {}
            }
        });
        Ok(())
    }
}
