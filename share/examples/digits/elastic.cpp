// SPDX-License-Identifier: Apache-2.0
//
// Data-parallel training that replaces lost ranks. When a rank dies, the others shrink their group, wait for a process
// that takes its place, grow the group, and repeat the epoch. The losses are those of an undisturbed run.
//
//     backplane run -n 4 --keep-going --backend gloo sh -c 'elastic || exec elastic --join'
//
// --join: takes the place of a lost rank. --die-at-epoch N: this process kills itself before epoch N.
#include <signal.h>

#include <backplane/backplane.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "training.hpp"

namespace bp = backplane;

namespace {

using std::chrono::steady_clock;

constexpr auto kReplacementTime = std::chrono::seconds(60);  // that the ranks wait for a new one

struct Options {
  bool joins = false;
  int epochs = 10;
  int die_at_epoch = 0;  // 0: never
};

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const bool has_value = i + 1 < argc;
    if (option == "--join") {
      options.joins = true;
    } else if (option == "--epochs" && has_value) {
      options.epochs = std::atoi(argv[++i]);
    } else if (option == "--die-at-epoch" && has_value) {
      options.die_at_epoch = std::atoi(argv[++i]);
    } else {
      throw std::runtime_error("usage: elastic [--join] [--epochs N] [--die-at-epoch N]; not " + option);
    }
  }
  return options;
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The store that the launcher serves. It outlives every rank.
bp::Store launcher_store() {
  if (variable("MASTER_PORT").empty()) throw std::runtime_error("MASTER_PORT is not set; start with `backplane run`");
  return bp::Store::connect(variable("MASTER_ADDR"), static_cast<uint16_t>(std::atoi(variable("MASTER_PORT").c_str())),
                            variable("BACKPLANE_JOB_ID"));
}

// Takes in new ranks until there are `size`, or until none comes in time.
bp::ProcessGroup refill(bp::ProcessGroup group, const bp::Store& store, int size) {
  while (group.world_size() < size) {
    const auto end = steady_clock::now() + kReplacementTime;
    while (group.rank() == 0 && store.newcomers() == 0 && steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::string why;
    std::optional<bp::ProcessGroup> grown = group.grow(store, 2 * kReplacementTime, &why);
    if (!grown) {
      std::fprintf(stderr, "elastic: %s\n", why.c_str());
      break;
    }
    group = *std::move(grown);
  }
  return group;
}

// Gives all ranks the state of rank 0. Survivors may be one epoch apart.
digits::State share(bp::ProcessGroup& group, const digits::DataSet& data, int width, digits::State state) {
  std::ostringstream text;
  text << state.epoch << ' ' << state.random;
  std::istringstream agreed(group.broadcast_object(text.str(), 0));
  agreed >> state.epoch >> state.random;
  state.parameters.resize(digits::Network(width).parameters().size());
  state.velocity.resize(state.parameters.size());
  state.order.resize(data.training.size());
  bp::bcast_list(std::vector<bp::Buffer>{state.parameters, state.velocity, state.order}, group);
  return state;
}

void train(bp::ProcessGroup group, const bp::Store& store, const digits::DataSet& data, const Options& options) {
  const digits::Settings settings{.epochs = options.epochs};
  const int size = std::max(std::atoi(variable("WORLD_SIZE").c_str()), 1);
  std::optional<digits::Training> training;
  digits::State state;
  if (!options.joins) state = training.emplace(group, data, settings).state();
  while (state.epoch < settings.epochs) {
    try {
      if (!training) {
        group = refill(group, store, size);
        state = share(group, data, settings.width, state);
        training.emplace(group, data, settings, state);
        continue;
      }
      if (state.epoch + 1 == options.die_at_epoch) ::raise(SIGKILL);
      const double loss = training->run_epoch();
      const double accuracy = training->accuracy();
      state = training->state();
      if (group.rank() == 0) {
        std::printf("epoch %2d of %d: loss %.4f, %.4f%% of the held-out digits right\n", state.epoch, settings.epochs,
                    loss, accuracy);
        std::fflush(stdout);
      }
    } catch (const bp::Error& e) {
      if (e.status() != bp::Status::kPeerLost) throw;
      std::fprintf(stderr, "elastic: %s\n", e.what());
      training.reset();
      group = group.shrink();
    }
  }
  if (group.rank() == 0) std::printf("trained on %d ranks at the end\n", group.world_size());
}

int run(const Options& options) {
  const digits::DataSet data = digits::parse(digits::read_file(digits::default_data_path()));
  const bp::Store store = launcher_store();
  if (options.joins) {
    train(bp::ProcessGroup::join({.store = store}, 2 * kReplacementTime), store, data, options);
    return 0;
  }
  train(bp::init_process_group(), store, data, options);
  bp::destroy_process_group();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse_options(argc, argv));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "elastic: %s\n", e.what());
    return 1;
  }
}
