//! Where it is measured: Redis, and the cores.

use crate::{
    Options, Result,
    generator::Ids,
    machine::{self, Cores},
    redis_server::RedisServer,
};

pub(crate) struct Lab {
    pub(crate) cores: Option<Cores>,
    pub(crate) redis: RedisServer,
    /// No id of an event is used twice, unless it has to be.
    pub(crate) ids: Ids,
    stolen: (u64, u64),
    load_average: String,
}

impl Lab {
    /// Starts Redis, beside which this process stays from now on.
    pub(crate) fn open(options: &Options) -> Result<Self> {
        machine::raise_open_files()?;
        let cores = Cores::choose()?;
        if let Some(cores) = cores {
            machine::pin(cores.load)?;
        } else {
            eprintln!("one core only: nothing is pinned, and everything competes");
        }
        Ok(Self {
            cores,
            redis: RedisServer::start(&options.redis_server, cores.map(|cores| cores.load))?,
            ids: Ids::default(),
            stolen: machine::stolen()?,
            load_average: machine::load_average()?,
        })
    }

    /// On what, and how undisturbed, it was measured.
    pub(crate) fn conditions(&self) -> Result<String> {
        let (stolen, all) = machine::stolen()?;
        let (stolen, all) = (stolen - self.stolen.0, all - self.stolen.1);
        let cores = match self.cores {
            Some(Cores { server, load }) => {
                format!("Server on core {server}, Redis and load generator on core {load}.")
            }
            None => "**Not pinned: one core only.**".into(),
        };
        let redis = &self.redis.name;
        Ok(format!(
            "{redis}. {cores} Load average before it: {}; stolen by the hypervisor: {:.1} %.",
            self.load_average,
            100.0 * stolen as f64 / all.max(1) as f64,
        ))
    }
}
