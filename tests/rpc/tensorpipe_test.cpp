// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <future>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "rpc/cut_express.hpp"
#include "rpc/workers.hpp"
#include "support/eventually.hpp"
#include "support/secret.hpp"

namespace backplane::test {
namespace {

// Where the worker listens that has left this card: "...uv://127.0.0.1:port".
sockaddr_in address_in(const std::string& card) {
  const size_t colon = card.find(':', card.find("uv://") + 5);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(card.substr(colon + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

std::string card_key(int rank) { return "group/rpc/0/rpc/agent/worker/" + std::to_string(rank); }

// Connects and closes the connection without sending. False if the port is closed.
bool knock(const std::string& card) {
  const sockaddr_in address = address_in(card);
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const bool open = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  ::close(socket);
  return open;
}

[[maybe_unused]] const bool tensorpipe_registered = [] {
  rpc::register_function("one", [] { return 1; });
  return true;
}();

// Calls may fail for a while, over connections that have broken or are not accepted.
void expect_one_within_a_few(const rpc::Worker& worker, int to) {
  int got = 0;
  for (int i = 0; i < 1000 && got == 0; ++i) {
    try {
      got = worker.rpc_sync<int>(to, "one");
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), Status::kPeerLost) << e.what();
    }
  }
  EXPECT_EQ(got, 1);
}

TEST(RpcTensorPipeTest, IsTakenIfNobodyNamesAnother) {
  Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    rpc::RpcOptions options = rpc_options("inproc", store, rank, 2);
    options.backend.clear();
    const auto worker = rpc::Worker::join(worker_name(rank), options);
    EXPECT_EQ(worker.backend(), "tensorpipe");
    EXPECT_EQ(store.get(card_key(rank)).find("uv://"), std::string::npos);  // on one host no port is open
    worker.shutdown();
  });
}

// It has no way to know who its peers are.
TEST(RpcTensorPipeTest, IsNotForJobsWithASecret) {
  const ScopedSecret secret;
  for (const bool named : {false, true}) {
    const Store store = Store::inproc();
    on_ranks(2, [&store, named](int rank) {
      rpc::RpcOptions options = rpc_options(named ? "tensorpipe" : "inproc", store, rank, 2);
      if (!named) {
        options.backend.clear();
        const auto worker = rpc::Worker::join(worker_name(rank), options);
        EXPECT_EQ(worker.backend(), "process_group");
        EXPECT_EQ(worker.rpc_sync<int>(1 - rank, "one"), 1);
        worker.shutdown();
        return;
      }
      std::string text;
      EXPECT_EQ(failure_of([&] { rpc::Worker::join(worker_name(rank), options); }, &text), Status::kUnsupported);
      EXPECT_EQ(text.find("rank 0 cannot join: backend 'tensorpipe' cannot authenticate its peers (auth=none), and the "
                          "job has a secret; "),
                0U)
          << text;
    });
  }
}

// Failures that would end the process on a thread of TensorPipe are detected before.
TEST(RpcTensorPipeTest, WorkersThatCannotReachEachOtherDoNotStart) {
  const auto refusal = [](const char* first, const char* second, Status status) {
    const Store store = Store::inproc();
    std::array<std::string, 2> texts;
    on_ranks(2, [&](int rank) {
      const auto options = rpc_options("tensorpipe", store, rank, 2, rank == 0 ? first : second);
      std::string& text = texts[static_cast<size_t>(rank)];
      EXPECT_EQ(failure_of([&] { rpc::Worker::join(worker_name(rank), options); }, &text), status) << text;
    });
    return texts[0] + "\n" + texts[1];
  };
  EXPECT_NE(refusal("?transports=uv", "?transports=shm", Status::kInvalid).find("no transport in common"),
            std::string::npos);
  // The other one does not wait in vain.
  const std::string text = refusal("", "?address=192.0.2.1", Status::kInvalid);
  EXPECT_NE(text.find("cannot listen there"), std::string::npos) << text;
}

// More workers than descriptors allow to share memory meet on a port of the loopback address.
TEST(RpcTensorPipeTest, DescriptorsDecideOnSharedMemory) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit little = {180, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &little), 0);
  Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options("tensorpipe", store, rank, 2));
    EXPECT_NE(store.get(card_key(rank)).find("uv://127.0.0.1:"), std::string::npos);
    EXPECT_EQ(worker.rpc_sync<int>(1 - rank, "one"), 1);
    worker.shutdown();
  });
  std::string text;
  const rpc::RpcOptions options = rpc_options("tensorpipe", Store::inproc(), 0, 2, "?transports=shm");
  on_ranks(2, [&](int rank) {
    rpc::RpcOptions own = options;
    own.rank = rank;
    EXPECT_EQ(failure_of([&] { rpc::Worker::join(worker_name(rank), own); }, rank == 0 ? &text : nullptr),
              Status::kResource);
  });
  EXPECT_NE(text.find("ulimit -n"), std::string::npos) << text;
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

// Descriptors that pipes need are not used for express connections.
TEST(RpcTensorPipeTest, DescriptorsDecideOnExpressConnections) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  for (const rlim_t most : {190, 240}) {
    const rlimit little = {most, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &little), 0);
    Store store = Store::inproc();
    on_ranks(2, [&store, most](int rank) {
      const auto worker = rpc::Worker::join(worker_name(rank), rpc_options("tensorpipe", store, rank, 2));
      const std::string card = store.get(card_key(rank));
      EXPECT_EQ(card.find("uv://"), std::string::npos);
      EXPECT_EQ(card.rfind("backplane-") > card.find("shm://backplane-") + 6, most > 200) << card;
      for (int i = 0; i < 10; ++i) EXPECT_EQ(worker.rpc_sync<int>(1 - rank, "one"), 1);
      worker.shutdown();
    });
  }
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(RpcTensorPipeTest, AddressesThatLeadNowhereFailTheCall) {
  Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const auto worker =
        rpc::Worker::join(worker_name(rank), rpc_options("tensorpipe", store, rank, 2, "?transports=uv"));
    if (rank == 0) {
      const std::string card = store.get(card_key(1));
      std::string wrong = card;
      wrong.replace(wrong.find("127.0.0.1"), 9, "255.255.255.255");
      store.set(card_key(1), wrong);
      std::string text;
      EXPECT_EQ(failure_of([&worker] { worker.rpc_sync<int>(1, "one"); }, &text), Status::kPeerLost);
      EXPECT_NE(text.find("no route to rank 1"), std::string::npos) << text;
      store.set(card_key(1), card);
      expect_one_within_a_few(worker, 1);  // the cancellation of that call may use the wrong connection
    }
    EXPECT_TRUE(worker.shutdown().empty());
  });
}

TEST(RpcTensorPipeTest, TakesTransportsAndChannelsByName) {
  rpc::register_function("same array", [](const rpc::Array<int>& array) { return array; });
  for (const char* agent :
       {"?transports=uv&channels=basic", "?transports=uv&channels=basic+mpt", "?transports=shm+uv"}) {
    in_world(
        "tensorpipe", 2,
        [](const rpc::Worker& worker) {
          const rpc::Array<int> sent(std::vector<int>(100000, worker.rank()));
          const auto back = worker.rpc_sync<rpc::Array<int>>(1 - worker.rank(), "same array", sent);
          EXPECT_EQ(std::vector<int>(back.begin(), back.end()), std::vector<int>(sent.begin(), sent.end()));
        },
        agent);
  }
  std::string text;
  rpc::RpcOptions options = rpc_options("tensorpipe", Store::inproc(), 0, 1, "?transports=pigeon");
  EXPECT_EQ(failure_of([&options] { rpc::Worker::join("me", options); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("transports does not know 'pigeon'; available: uv, shm"), std::string::npos) << text;
  options = rpc_options("tensorpipe", Store::inproc(), 0, 1, "?channels=pigeon");
  EXPECT_EQ(failure_of([&options] { rpc::Worker::join("me", options); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("channels does not know 'pigeon'; available: basic, mpt, cma"), std::string::npos) << text;
  options = rpc_options("tensorpipe", Store::inproc(), 0, 1, "?device_maps=you:0=0");
  EXPECT_EQ(failure_of([&options] { rpc::Worker::join("me", options); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("maps to worker you, which does not exist"), std::string::npos) << text;
}

TEST(RpcTensorPipeTest, StrangersWhoComeAndGoLockNobodyOut) {
  Store store = Store::inproc();
  on_ranks(3, [&store](int rank) {
    const auto worker =
        rpc::Worker::join(worker_name(rank), rpc_options("tensorpipe", store, rank, 3, "?transports=uv"));
    if (rank == 0) {
      EXPECT_EQ(worker.rpc_sync<int>(1, "one"), 1);
      EXPECT_TRUE(knock(store.get(card_key(1))));
      for (int i = 0; i < 2; ++i) knock(store.get(card_key(1)));  // the listener may be about to be replaced
    }
    worker.all_gather(0);
    // A connection attempt fails while the listener is being replaced.
    expect_one_within_a_few(worker, (rank + 2) % 3);  // no worker has a pipe to it yet
    worker.shutdown();
  });
}

// Ends all connections of this process to the worker that has left this card, as a network might.
int cut(const std::string& card) {
  const sockaddr_in address = address_in(card);
  int count = 0;
  for (int fd = 3; fd < 4096; ++fd) {
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || size != sizeof(peer)) continue;
    if (peer.sin_family != AF_INET || peer.sin_port != address.sin_port) continue;
    count += ::shutdown(fd, SHUT_RDWR) == 0 ? 1 : 0;
  }
  return count;
}

// Listens where a worker's card says from now on, and ends so many connections, the last one once the card is again
// what it was.
class Trap {
 public:
  Trap(Store store, int rank, int connections)
      : store_(std::move(store)), key_(card_key(rank)), card_(store_.get(key_)), left_(connections) {
    sockaddr_in address = address_in(card_);
    address.sin_port = 0;
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_, 8), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    std::string here = card_;
    const size_t port = here.find(':', here.find("uv://") + 5) + 1;
    here.replace(port, std::to_string(ntohs(address_in(card_).sin_port)).size(),
                 std::to_string(ntohs(address.sin_port)));
    store_.set(key_, here);
    thread_ = std::thread([this] { end_all(); });
  }
  ~Trap() {
    ::shutdown(socket_, SHUT_RDWR);  // ends accept
    thread_.join();
    ::close(socket_);
  }
  Trap(const Trap&) = delete;
  Trap& operator=(const Trap&) = delete;

  // Waits until all have come; false if they did not within 20 s.
  bool is_sprung() { return sprung_.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready; }

 private:
  void end_all() {
    for (; left_ > 0; --left_) {
      const int connection = ::accept(socket_, nullptr, nullptr);
      if (connection < 0) return;
      if (left_ == 1) store_.set(key_, card_);
      ::close(connection);
    }
    sprung_.set_value();
  }

  Store store_;
  const std::string key_;
  const std::string card_;
  const int socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  int left_;
  std::promise<void> sprung_;
  std::thread thread_;
};

// A function that runs until it is cancelled or released.
struct Held {
  std::promise<void> began;
  std::promise<bool> heard;
  std::atomic<bool> may_go = false;
};

// One call, whose connection breaks, and so many of the next ones, too; its function hears of its end if `told`, and
// the next call finds a new connection.
void expect_told(bool cancel, int traps, bool told, bool express = false) {
  static Held* held = nullptr;
  [[maybe_unused]] static const bool registered = [] {
    rpc::register_function("hold on", [] {
      held->began.set_value();
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!rpc::cancelled() && !held->may_go && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      held->heard.set_value(rpc::cancelled());
    });
    return true;
  }();
  Held call_held;
  held = &call_held;
  Store store = Store::inproc();
  on_ranks(2, [&](int rank) {
    const char* const transport = express ? "?transports=shm" : "?transports=uv";
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options("tensorpipe", store, rank, 2, transport));
    if (rank == 0) {
      // The answer leaves rank 1 with a pipe over which it tells of its doubt before the call ends: none of the repeats
      // is for that.
      // And there is an express connection by then, if it is to be.
      for (int i = 0; i < (express ? 200 : 1); ++i) EXPECT_EQ(worker.rpc_sync<int>(1, "one"), 1);
      const auto call = worker.rpc_async<void>({1, kNoTimeout}, "hold on");  // no timeout
      EXPECT_TRUE(in_time(call_held.began.get_future())) << "the call does not begin";
      const std::string card = store.get(card_key(1));
      std::optional<Trap> trap;
      if (traps > 0) trap.emplace(store, 1, traps);
      EXPECT_GT(express ? cut_express(card) : cut(card), 0);
      if (cancel) call.cancel();
      EXPECT_TRUE(call.wait_for(std::chrono::seconds(20)));
      std::string text;
      EXPECT_EQ(failure_of([&call] { call.wait(); }, &text), cancel ? Status::kCancelled : Status::kPeerLost);
      // Rank 1 may detect the broken express connection first, and report lost replies.
      const char* const part = express ? " broke" : "the connection to rank 1 broke";
      EXPECT_EQ(text.find(part) != std::string::npos, !cancel) << text;
      EXPECT_TRUE(!trap || trap->is_sprung());
      if (!told) {
        expect_one_within_a_few(worker, 1);  // the first one may still go over the last one that broke
        call_held.may_go = true;
      }
      EXPECT_EQ(call_held.heard.get_future().get(), told);
      if (express) expect_one_within_a_few(worker, 1);  // rank 1 may have heard first, see above
      EXPECT_EQ(worker.rpc_sync<int>(1, "one"), 1);
    }
    EXPECT_TRUE(worker.shutdown().empty());
  });
}

// Also those whose message had been sent long ago.
TEST(RpcTensorPipeTest, BrokenConnectionsEndTheCallsOnThem) { expect_told(false, 0, true); }
TEST(RpcTensorPipeTest, BrokenExpressConnectionsEndTheCallsOnThem) { expect_told(false, 0, true, true); }
TEST(RpcTensorPipeTest, CancelsThatAConnectionTakesWithItAreTold) { expect_told(true, 0, true); }
TEST(RpcTensorPipeTest, CancelsThatAnExpressConnectionTakesWithItAreTold) { expect_told(true, 0, true, true); }
// After a connection broke a cancellation is sent three more times at most, and no connection is opened after that.
TEST(RpcTensorPipeTest, CancelsThatConnectionsTakeWithThemAreToldAgain) { expect_told(false, 2, true); }
TEST(RpcTensorPipeTest, CancelsAreNotToldAgainWithoutEnd) { expect_told(false, 4, false); }

TEST(RpcTensorPipeTest, WorkersOfOtherChannelsHaveOneInCommon) {
  rpc::register_function("sum of array",
                         [](const rpc::Array<int>& array) { return std::accumulate(array.begin(), array.end(), 0); });
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const auto worker = rpc::Worker::join(
        worker_name(rank), rpc_options("tensorpipe", store, rank, 2, rank == 0 ? "?channels=mpt" : "?channels=basic"));
    EXPECT_EQ(worker.rpc_sync<int>(1 - rank, "sum of array", rpc::Array<int>(std::vector<int>(100000, 1))), 100000);
    EXPECT_TRUE(worker.shutdown().empty());
  });
}

}  // namespace
}  // namespace backplane::test
