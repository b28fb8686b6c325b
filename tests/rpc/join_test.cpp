// SPDX-License-Identifier: Apache-2.0
//
// How workers join: the rules and errors of torch.distributed.rpc, and misuse.
#include <any>
#include <atomic>
#include <thread>

#include "backplane/abi/ext/rpc.h"
#include "backplane/compat/master_worker.hpp"
#include "rpc/workers.hpp"
#include "support/environment.hpp"

namespace backplane::test {
namespace {

// The error of each rank that joins with the name and options that `change` has modified.
std::vector<std::string> failures(int world_size,
                                  const std::function<void(int, std::string*, rpc::RpcOptions*)>& change) {
  std::vector<std::string> texts(static_cast<size_t>(world_size));
  const Store store = Store::inproc();
  on_ranks(world_size, [&](int rank) {
    std::string name = worker_name(rank);
    rpc::RpcOptions options = rpc_options("inproc", store, rank, world_size);
    change(rank, &name, &options);
    failure_of([&] { rpc::Worker::join(name, options); }, &texts[static_cast<size_t>(rank)]);
  });
  return texts;
}

[[maybe_unused]] const bool join_registered = [] {
  rpc::register_function("twice", [](int value) { return 2 * value; });
  return true;
}();

TEST(RpcJoinTest, WorkersKnowNamesAndRanks) {
  in_world("inproc", 3, [](const rpc::Worker& worker) {
    EXPECT_EQ(worker.get_worker_info().name, worker_name(worker.rank()));
    EXPECT_EQ(worker.get_worker_info("worker2").id, 2);
    EXPECT_EQ(worker.backend(), "process_group");
    const auto all = worker.all_gather(worker.rank() * 10);
    EXPECT_EQ(all, (std::map<std::string, int>{{"worker0", 0}, {"worker1", 10}, {"worker2", 20}}));
    // Objects of different types are an error.
    const auto mixed = [&worker] {
      if (worker.rank() == 0) {
        worker.all_gather(1);
      } else {
        worker.all_gather(std::string("one"));
      }
    };
    std::string text;
    EXPECT_EQ(failure_of(mixed, &text), Status::kInvalid);
    const bool is_first = worker.rank() == 0;
    EXPECT_EQ(text.find(is_first ? "the object of worker 'worker1' (rank 1) must be int: a string was sent"
                                 : "the object of worker 'worker0' (rank 0) must be std::string: an integer was sent"),
              0U)
        << text;
  });
}

TEST(RpcJoinTest, EnvironmentSuppliesDefaults) {
  const auto leave_open = [](int, std::string*, rpc::RpcOptions* options) { options->backend.clear(); };
  const ScopedVariable backend("BACKPLANE_RPC_BACKEND", "missing");
  for (const std::string& text : failures(2, leave_open)) {
    EXPECT_NE(text.find("'missing'"), std::string::npos) << text;
  }
}

TEST(RpcJoinTest, NamesAreUnique) {
  for (const std::string& text : failures(3, [](int rank, std::string*name, rpc::RpcOptions*) {
         if (rank == 2) *name = "worker0";
       })) {
    EXPECT_EQ(text, "ranks 0 and 2 are both called 'worker0'; give each worker a name of its own");
  }
}

TEST(RpcJoinTest, NamesAreWellFormed) {
  for (const std::string& bad : {std::string(), std::string("a b"), std::string(128, 'x')}) {
    for (const std::string& text : failures(2, [&bad](int rank, std::string*name, rpc::RpcOptions*) {
           if (rank == 1) *name = bad;
         })) {
      EXPECT_EQ(text.find("rank 1 cannot join: the worker name '" + bad + "'"), 0U) << text;
    }
  }
}

TEST(RpcJoinTest, AFailureOfOneRankFailsAll) {
  for (const std::string& text : failures(2, [](int rank, std::string*, rpc::RpcOptions*options) {
         if (rank == 1) options->backend = "process_group?num_worker_thread=3";
       })) {
    EXPECT_EQ(text.find("rank 1 cannot join: "), 0U) << text;
    EXPECT_NE(text.find("num_worker_threads"), std::string::npos) << text;
  }
  for (const std::string& text : failures(2, [](int rank, std::string*, rpc::RpcOptions*options) {
         if (rank == 0) options->backend = "inproc";
       })) {
    EXPECT_NE(text.find("makes process groups, not RPC agents"), std::string::npos) << text;
  }
}

TEST(RpcJoinTest, RanksMustMatchTheDefaultGroup) {
  GroupOptions group = group_options("self", Store::inproc(), 0, 1);
  init_process_group(group);
  rpc::RpcOptions options;
  options.backend = "process_group";
  options.rank = 1;
  std::string text;
  EXPECT_EQ(failure_of([&options] { rpc::init_rpc("me", options); }, &text), Status::kInvalid);
  EXPECT_EQ(text, "rank 0 cannot join: rank argument 1 doesn't match pg rank 0");
  options.rank = 0;
  options.world_size = 2;
  EXPECT_EQ(failure_of([&options] { rpc::init_rpc("me", options); }, &text), Status::kInvalid);
  EXPECT_EQ(text, "rank 0 cannot join: world_size argument 2 doesn't match pg size 1");
  options.world_size = 1;
  rpc::init_rpc("me", options);
  EXPECT_EQ(failure_of([&options] { rpc::init_rpc("again", options); }, &text), Status::kInvalid);
  EXPECT_EQ(text, "RPC is already initialized in this process; call shutdown first");
  EXPECT_EQ(rpc::get_worker_info().name, "me");
  rpc::shutdown();
  EXPECT_EQ(failure_of([] { rpc::get_worker_info(); }), Status::kInvalid);
  destroy_process_group();
}

// Its peer waits for it, so both get the error.
TEST(RpcJoinTest, SecondInitReportsToWaitingPeers) {
  const rpc::Worker alone = rpc::init_rpc("alone", rpc_options("self", Store::inproc(), 0, 1));
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const rpc::RpcOptions options = rpc_options("inproc", store, rank, 2);
    std::string text;
    const auto join = [&] { rank == 0 ? rpc::init_rpc("first", options) : rpc::Worker::join("second", options); };
    EXPECT_EQ(failure_of(join, &text), Status::kInvalid);
    EXPECT_EQ(text, "rank 0 cannot join: RPC is already initialized in this process; call shutdown first");
  });
  EXPECT_EQ(rpc::get_worker_info().name, "alone");
  alone.shutdown();
}

// The error does not depend on peers.
TEST(RpcJoinTest, SecondInitFailsWithoutPeers) {
  const std::string already = "RPC is already initialized in this process; call shutdown first";
  const Store first = Store::inproc();
  on_ranks(2, [&first](int rank) {
    const rpc::RpcOptions options = rpc_options("inproc", first, rank, 2);
    if (rank == 0) {
      rpc::init_rpc("first", options);
    } else {
      rpc::Worker::join("second", options).shutdown(false);
    }
  });
  std::string text;
  rpc::RpcOptions elsewhere = rpc_options("inproc", Store::inproc(), 0, 3);
  elsewhere.timeout = std::chrono::milliseconds(10);
  EXPECT_EQ(failure_of([&elsewhere] { rpc::init_rpc("again", elsewhere); }, &text), Status::kInvalid);
  EXPECT_EQ(text, already);
  init_process_group(group_options("self", Store::inproc(), 0, 1));
  for (const char* const where : {"", "env://"}) {
    rpc::RpcOptions options;
    options.options = construct_rpc_backend_options(backend_type("process_group"), std::chrono::seconds(5), where);
    EXPECT_EQ(failure_of([&options] { rpc::init_rpc("again", options); }, &text), Status::kInvalid);
    EXPECT_EQ(text, already);  // "rank 0 cannot join" would mean that it joined the group
  }
  destroy_process_group();
  rpc::shutdown(false);
}

TEST(RpcJoinTest, RankOutsideTheWorldFailsAll) {
  const auto wrong = [](int rank, std::string*, rpc::RpcOptions* options) {
    if (rank == 1) options->rank = 2;
  };
  const std::vector<std::string> texts = failures(2, wrong);
  EXPECT_EQ(texts[1], "rank 2 is not in 0..1");
  EXPECT_NE(texts[0].find("rank is 2, but the world size is 2; ranks go from 0 to 1"), std::string::npos) << texts[0];
}

TEST(RpcJoinTest, UnknownGroupBackendOfOneRankFailsAll) {
  const auto wrong = [](int rank, std::string*, rpc::RpcOptions* options) {
    if (rank == 1) options->group = "inporc";
  };
  const std::vector<std::string> texts = failures(2, wrong);
  EXPECT_NE(texts[1].find("inporc"), std::string::npos) << texts[1];
  EXPECT_EQ(texts[0], "rank 1 cannot join group 'rpc': " + texts[1]);
}

TEST(RpcJoinTest, OptionsComeFromTheRegistry) {
  const BackendType type = backend_type("PROCESS_GROUP");
  EXPECT_EQ(type.repr(), "BackendType.PROCESS_GROUP");
  const BackendOptions made =
      construct_rpc_backend_options(type, std::chrono::seconds(5), "env://", {{"num_send_recv_threads", "8"}});
  EXPECT_EQ(made["num_send_recv_threads"], "8");
  EXPECT_EQ(made["num_worker_threads"], "16");
  rpc::RpcOptions options = rpc_options("self", Store::inproc(), 0, 1);
  options.backend.clear();
  options.options = made;
  const rpc::Worker worker = rpc::Worker::join("me", options);
  EXPECT_EQ(worker.backend(), "process_group");
  worker.shutdown();
  const Store store = Store::inproc();
  std::string text;
  EXPECT_EQ(failure_of([&] { init_backend(type, store, "me", 0, 1, made); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("process_group is for RPC, not for process groups"), std::string::npos) << text;
}

// As in torch, the options contain the rendezvous address.
TEST(RpcJoinTest, OptionsContainTheInitMethod) {
  const ScopedDirectory directory;
  const BackendOptions made = construct_rpc_backend_options(backend_type("PROCESS_GROUP"), std::chrono::seconds(5),
                                                            "file://" + (directory.path() / "meeting").string());
  on_ranks(2, [&made](int rank) {
    rpc::RpcOptions options;
    options.options = made;
    options.group = built_backends().back();
    options.rank = rank;
    options.world_size = 2;
    const rpc::Worker worker = rpc::Worker::join(worker_name(rank), options);
    EXPECT_EQ(worker.get_worker_info(worker_name(1 - rank)).id, 1 - rank);
    worker.shutdown();
  });
}

// As in torch, programs can register agents.
TEST(RpcJoinTest, ProgramsRegisterAgents) {
  static const bp_backend& other = backend_type("process_group").descriptor();
  static std::atomic<int> made = 0;
  static bp_backend mine = other;
  mine.id = "my_agent";
  mine.init = [](const bp_backend*, const bp_init* init, bp_agent* agent, bp_error* err) {
    ++made;
    return other.init(&other, init, agent, err);
  };
  EXPECT_EQ(register_backend(mine).repr(), "BackendType.MY_AGENT");
  rpc::register_function("named", [] { return rpc::get_worker_info().name; });
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    rpc::RpcOptions options = rpc_options("inproc", store, rank, 2);
    options.backend = "my_agent?num_worker_threads=1";
    const rpc::Worker worker = rpc::Worker::join(worker_name(rank), options);
    EXPECT_EQ(worker.backend(), "my_agent");
    EXPECT_EQ(worker.rpc_sync<std::string>(1 - rank, "named"), worker_name(1 - rank));
    worker.shutdown();
  });
  EXPECT_EQ(made, 2);
}

// As in torch, a pair of handlers is a backend that is chosen by name. This one uses process_group's agent, and makes
// its options from the arguments of the worker.
TEST(RpcJoinTest, RegistersAPairOfHandlers) {
  static std::atomic<int> started = 0;
  BackendHandlers handlers;
  handlers.kinds = BP_KIND_RPC;
  handlers.flags = BP_BACKEND_RPC_OVER_GROUP;
  const bp_backend& schema = backend_type("process_group").descriptor();
  for (uint32_t i = 0; i < schema.option_count; ++i) handlers.options.push_back(*schema.options[i]);
  handlers.construct_options = [](Timeout timeout, const std::string& init_method, const Keywords&) {
    return std::any(init_method + " " + std::to_string(timeout / std::chrono::seconds(1)));
  };
  static std::string constructed;
  handlers.init = [](const bp_init& init, const std::any& options, bp_agent* agent) {
    EXPECT_EQ(init.kind, BP_KIND_RPC);
    EXPECT_EQ(std::any_cast<std::string>(options), constructed);
    const bp_backend& inner = backend_type("process_group").descriptor();
    bp_init own = init;
    own.options = nullptr;
    backplane::detail::call(inner.init, &inner, static_cast<const bp_init*>(&own), agent);
    ++started;
  };
  register_backend("pair", handlers);
  const auto meet = [](const std::function<rpc::RpcOptions(int rank)>& options_of) {
    on_ranks(2, [&options_of](int rank) {
      rpc::RpcOptions options = options_of(rank);
      options.backend = "PAIR";
      const rpc::Worker worker = rpc::Worker::join(worker_name(rank), options);
      EXPECT_EQ(worker.backend(), "pair");
      EXPECT_EQ(worker.rpc_sync<int>(1 - rank, "twice", 21), 42);
      worker.shutdown(true, std::chrono::seconds(60));
    });
  };
  const Store store = Store::inproc();
  constructed = "env:// 60";
  meet([&store](int rank) { return rpc_options("inproc", store, rank, 2); });
  const ScopedDirectory directory;
  const std::string place = "file://" + (directory.path() / "meeting").string();
  constructed = place + " 77";
  meet([&place](int rank) {
    rpc::RpcOptions options;
    options.init_method = place;
    options.rpc_timeout = std::chrono::seconds(77);
    options.group = built_backends().back();
    options.rank = rank;
    options.world_size = 2;
    return options;
  });
  EXPECT_EQ(started, 4);
}

// All workers get the error; otherwise they would wait for the one with the wrong options.
TEST(RpcJoinTest, OptionsMustMatchTheNamedBackend) {
  const auto refused = [](const std::string& backend, const std::string& other, const std::string& why) {
    for (const std::string& text : failures(2, [&](int rank, std::string*, rpc::RpcOptions*options) {
           options->backend = rank == 0 ? backend : "process_group";
           if (rank == 0) options->options = construct_rpc_backend_options(backend_type(other));
         })) {
      EXPECT_EQ(text, "rank 0 cannot join: " + why);
    }
  };
  refused("process_group", "inproc",
          "`rpc_backend_options` must be options of BackendType.PROCESS_GROUP, these are of BackendType.INPROC");
  refused("process_group?num_worker_threads=3", "process_group",
          "process_group has options behind its name ('num_worker_threads=...') and `rpc_backend_options` beside it; "
          "give one of both");
}

TEST(RpcJoinTest, FailedMasterLeavesNoGroup) {
  const GroupOptions alone = group_options("self", Store::inproc(), 0, 1);
  std::string text;
  EXPECT_EQ(failure_of([&alone] { compat::init_master_worker(alone); }, &text), Status::kInvalid);
  EXPECT_EQ(text, "init_master_worker needs at least two ranks: a master and a worker");
  EXPECT_FALSE(is_initialized());
}

TEST(RpcJoinTest, FunctionNamesAreUnique) {
  rpc::register_function("once", [] {});
  std::string text;
  EXPECT_EQ(failure_of([] { rpc::register_function("once", [] {}); }, &text), Status::kInvalid);
  EXPECT_EQ(text, "function 'once' is registered already; give this one another name");
  EXPECT_EQ(failure_of([] { rpc::register_function("", [] {}); }, &text), Status::kInvalid);
  EXPECT_EQ(text, "the name of a function must have 1 to 255 bytes; this one has 0");
}

TEST(RpcJoinTest, InitBackendUsesOptionsAndTheirTimeout) {
  rpc::register_function("until cancelled", [] {
    while (!rpc::cancelled()) std::this_thread::yield();
  });
  const BackendType type = backend_type("process_group");
  const auto init = [&type](const BackendOptions& options) {
    return rpc::init_backend(type, Store::inproc(), "me", 0, 1, options);
  };
  std::string text;
  EXPECT_EQ(failure_of([&init] { init(construct_rpc_backend_options(backend_type("inproc"))); }, &text),
            Status::kInvalid);
  EXPECT_EQ(text,
            "rank 0 cannot join: `rpc_backend_options` must be options of BackendType.PROCESS_GROUP, these are of "
            "BackendType.INPROC");
  const rpc::Worker worker = init(construct_rpc_backend_options(type, std::chrono::milliseconds(50)));
  EXPECT_EQ(worker.backend(), "process_group");
  EXPECT_EQ(failure_of([] { rpc::rpc_sync("me", "until cancelled"); }, &text), Status::kTimeout);
  EXPECT_NE(text.find("did not reply within 0.05 s"), std::string::npos) << text;
  rpc::shutdown();
}

}  // namespace
}  // namespace backplane::test
