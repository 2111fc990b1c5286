//! Watch proxyd serve a private world: `./x demo`.
//!
//! The world is made of network namespaces and goes with this process. Each step shows what was
//! measured and fails the demo if it is not as promised.

mod excerpt;
mod scene;
mod screen;
mod steps;

use std::process::ExitCode;

use anyhow::{Context, Result};

use scene::{Machine, Scene};
use screen::Screen;

fn main() -> ExitCode {
    let mut screen = Screen::new();
    match show(&mut screen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            screen.failure(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn show(screen: &mut Screen) -> Result<()> {
    screen.title("proxyd serves a node of its own: three network namespaces, real packets");
    let before = Machine::look()?;
    let mut scene = Scene::new().context("making the world")?;
    let played = play(&mut scene, screen);
    // What the program said explains a failure, and goes with the scene.
    let log = scene.log();
    let ended = scene.end();
    played.with_context(|| format!("not as promised; proxyd said:\n{log}"))?;
    ended?;
    before.compare(&Machine::look()?)?;
    screen.step("everything is gone again: the machine is as it was")?;
    screen.end()
}

fn play(scene: &mut Scene, screen: &mut Screen) -> Result<()> {
    steps::world(scene, screen)?;
    steps::start(scene, screen)?;
    steps::connections(scene, screen)?;
    steps::endpoint_leaves(scene, screen)?;
    steps::no_endpoints(scene, screen)?;
    steps::restart(scene, screen)?;
    steps::flush(scene, screen)?;
    steps::rules(scene, screen)
}
