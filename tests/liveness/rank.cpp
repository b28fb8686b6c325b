// SPDX-License-Identifier: Apache-2.0
//
// A rank that executes commands, one per line of standard input, and replies to each with one line: "ok", the result of
// the command, or "error STATUS PEER TEXT".
//
//   init             creates the default group from the environment
//   all_reduce       of a few numbers; "sum S" if each rank contributes 1
//   flood            all_reduces until one fails
//   traffic N        N all_reduces, alternately small and large; "ok" if all sums are correct
//   hurry MS         an all_reduce with a timeout of MS milliseconds
//   broadcast R, recv R, exchange R (both ways, between two ranks), barrier
//   new_group        of all ranks
//   rpc AGENT        joins with that agent, calls all other workers and leaves
//   shrink           continues in the shrunk group: "shrunk RANK of WORLD: GLOBAL RANKS"
//   ask              opens the job's store and asks to join: "ok", later "joined RANK of WORLD"
//   newcomers        waits until a process has asked
//   grow             continues in the grown group, if there is one: "grown RANK of WORLD" or "again WHY"
//   abort
//   serve            a store, at TEST_SERVE_HOST if that is set: "port P"
//   leave            calls exit without destroying the group
//   vanish           _exit
//   quit             destroys everything and returns
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "backplane/backplane.hpp"
#include "backplane/rpc.hpp"

namespace {

using backplane::ProcessGroup;

constexpr auto kShrinkTime = std::chrono::seconds(60);

// The store of the job, as the environment names it.
backplane::Store open_store() {
  const std::string file = "file://";
  if (const char* method = std::getenv("TEST_INIT_METHOD")) return backplane::Store::file(method + file.size());
  return backplane::Store::connect(std::getenv("MASTER_ADDR"),
                                   static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT"))));
}

class Rank {
 public:
  // False after the last command.
  bool obey(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    int peer = -1;
    words >> command;
    if (command == "rpc") words >> agent_;
    words >> peer;
    if (command == "quit" || command == "leave") {
      if (command == "quit") group_.reset();
      if (command == "quit" && backplane::is_initialized()) backplane::destroy_process_group();
      say("ok");
      if (command == "leave") std::exit(0);  // does not run the destructors of main
      return false;
    }
    try {
      say(perform(command, peer));
    } catch (const backplane::Error& e) {
      say("error " + std::to_string(static_cast<int>(e.status())) + " " + std::to_string(e.peer_rank()) + " " +
          e.what());
    }
    return true;
  }

 private:
  static void say(const std::string& answer) {
    std::printf("%s\n", answer.c_str());
    std::fflush(stdout);
  }

  std::string perform(const std::string& command, int peer) {
    if (command == "serve") {
      const char* host = std::getenv("TEST_SERVE_HOST");
      server_ = std::make_unique<backplane::StoreServer>(host == nullptr ? "127.0.0.1" : host);
      return "port " + std::to_string(server_->port());
    }
    if (command == "vanish") ::_exit(0);
    if (command == "init") {
      backplane::GroupOptions options;
      if (const char* method = std::getenv("TEST_INIT_METHOD")) options.init_method = method;
      group_ = backplane::init_process_group(options);
    } else if (command == "barrier") {
      group_->barrier();
    } else if (command == "all_reduce") {
      return all_reduce(4);
    } else if (command == "flood") {
      for (;;) all_reduce(size_t{1} << 16);
    } else if (command == "traffic") {
      const std::string expected = "sum " + std::to_string(group_->world_size());
      for (int i = 0; i < peer; ++i) {
        const std::string answer = all_reduce(i % 8 == 0 ? size_t{1} << 16 : 4);
        if (answer != expected) return answer;
      }
    } else if (command == "hurry") {
      return all_reduce(4, {.timeout = std::chrono::milliseconds(peer)});
    } else if (command == "broadcast") {
      std::vector<float> values(1000);
      group_->broadcast(values, peer);
    } else if (command == "recv") {
      float value = 0;
      group_->recv(backplane::as_buffer(value), peer);
    } else if (command == "exchange") {
      return exchange(peer);
    } else if (command == "new_group") {
      std::vector<int> all;
      for (int rank = 0; rank < group_->world_size(); ++rank) all.push_back(rank);
      group_->new_group(all).barrier();
    } else if (command == "rpc") {
      return call_all();
    } else if (command == "shrink") {
      group_ = group_->shrink(kShrinkTime);
      std::string text =
          "shrunk " + std::to_string(group_->rank()) + " of " + std::to_string(group_->world_size()) + ":";
      for (int rank = 0; rank < group_->world_size(); ++rank) text += " " + std::to_string(group_->global_rank(rank));
      return text;
    } else if (command == "ask") {
      backplane::GroupOptions options;
      options.store = store();
      say("ok");
      group_ = backplane::ProcessGroup::join(options, kShrinkTime);
      return "joined " + position();
    } else if (command == "newcomers") {
      while (store().newcomers() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    } else if (command == "grow") {
      std::string why;
      std::optional<ProcessGroup> grown = group_->grow(store(), kShrinkTime, &why);
      if (!grown) return "again " + why;
      group_ = std::move(grown);
      return "grown " + position();
    } else if (command == "abort") {
      group_->abort("because the test says so");
    } else {
      return "unknown command " + command;
    }
    return "ok";
  }

  backplane::Store& store() {
    if (!store_) store_ = open_store();
    return *store_;
  }
  std::string position() const {
    return std::to_string(group_->rank()) + " of " + std::to_string(group_->world_size());
  }

  std::string all_reduce(size_t count, backplane::CallOptions options = {}) {
    std::vector<float> values(count, 1);
    group_->all_reduce(values, backplane::ReduceOp::kSum, options);
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    if (*least != *most) return "sums from " + std::to_string(*least) + " to " + std::to_string(*most);
    return "sum " + std::to_string(static_cast<int>(*most));
  }

  std::string call_all() const {
    namespace rpc = backplane::rpc;
    const char* const rank = std::getenv("RANK");
    rpc::register_function("rank", [] { return rpc::current().rank(); });
    const rpc::Worker worker =
        rpc::init_rpc(std::string("worker").append(rank == nullptr ? "" : rank), {.backend = agent_});
    std::string wrong;
    for (int to = 0; to < worker.world_size(); ++to) {
      if (worker.rpc_sync<int>(to, "rank") != to) wrong += " " + std::to_string(to);
    }
    worker.shutdown();
    return wrong.empty() ? "ok" : "wrong replies:" + wrong;
  }

  std::string exchange(int peer) {
    int mine = group_->rank();
    int theirs = -1;
    backplane::Work sending = group_->isend(backplane::as_buffer(mine), peer);
    group_->recv(backplane::as_buffer(theirs), peer);
    sending.wait();
    return theirs == peer ? "ok" : "received " + std::to_string(theirs);
  }

  std::string agent_;                      // of the command rpc
  std::optional<backplane::Store> store_;  // of newcomers
  std::optional<ProcessGroup> group_;
  std::unique_ptr<backplane::StoreServer> server_;
};

}  // namespace

int main() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // ends with the test
  Rank rank;
  for (std::string line; std::getline(std::cin, line);) {
    if (!rank.obey(line)) return 0;
  }
  return 0;
}
