// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
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

// The address in a published endpoint, "...uv://127.0.0.1:port".
sockaddr_in address_in(const std::string& endpoint) {
  const size_t colon = endpoint.find(':', endpoint.find("uv://") + 5);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(endpoint.substr(colon + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

std::string endpoint_key(int rank) { return "group/rpc/0/rpc/agent/worker/" + std::to_string(rank); }

// Connects and closes without sending. Returns false if the port is closed.
bool connect_and_close(const std::string& endpoint) {
  const sockaddr_in address = address_in(endpoint);
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const bool open = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  ::close(socket);
  return open;
}

[[maybe_unused]] const bool tensorpipe_registered = [] {
  rpc::register_function("one", [] { return 1; });
  return true;
}();

// Calls until one succeeds: the first may use a broken connection, or one that is not accepted.
void expect_call_succeeds_eventually(const rpc::Worker& worker, int to) {
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

TEST(RpcTensorPipeTest, IsTheDefault) {
  Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    rpc::RpcOptions options = rpc_options("inproc", store, rank, 2);
    options.backend.clear();
    const auto worker = rpc::Worker::join(worker_name(rank), options);
    EXPECT_EQ(worker.backend(), "tensorpipe");
    EXPECT_EQ(store.get(endpoint_key(rank)).find("uv://"), std::string::npos);  // no open port on one host
    worker.shutdown();
  });
}

// It cannot authenticate peers.
TEST(RpcTensorPipeTest, RefusesJobsWithASecret) {
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

// TensorPipe would end the process, so these failures are detected before.
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
  // The other worker gets the error as well.
  const std::string text = refusal("", "?address=192.0.2.1", Status::kInvalid);
  EXPECT_NE(text.find("cannot listen there"), std::string::npos) << text;
}

// With too few descriptors for shared memory, workers use a loopback port.
TEST(RpcTensorPipeTest, NeedsDescriptorsForSharedMemory) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit little = {180, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &little), 0);
  Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options("tensorpipe", store, rank, 2));
    EXPECT_NE(store.get(endpoint_key(rank)).find("uv://127.0.0.1:"), std::string::npos);
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

// Pipes take precedence over express connections.
TEST(RpcTensorPipeTest, NeedsDescriptorsForExpressConnections) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  for (const rlim_t most : {190, 240}) {
    const rlimit little = {most, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &little), 0);
    Store store = Store::inproc();
    on_ranks(2, [&store, most](int rank) {
      const auto worker = rpc::Worker::join(worker_name(rank), rpc_options("tensorpipe", store, rank, 2));
      const std::string endpoint = store.get(endpoint_key(rank));
      EXPECT_EQ(endpoint.find("uv://"), std::string::npos);
      EXPECT_EQ(endpoint.rfind("backplane-") > endpoint.find("shm://backplane-") + 6, most > 200) << endpoint;
      for (int i = 0; i < 10; ++i) EXPECT_EQ(worker.rpc_sync<int>(1 - rank, "one"), 1);
      worker.shutdown();
    });
  }
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(RpcTensorPipeTest, UnreachableAddressFailsTheCall) {
  Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const auto worker =
        rpc::Worker::join(worker_name(rank), rpc_options("tensorpipe", store, rank, 2, "?transports=uv"));
    if (rank == 0) {
      const std::string endpoint = store.get(endpoint_key(1));
      std::string wrong = endpoint;
      wrong.replace(wrong.find("127.0.0.1"), 9, "255.255.255.255");
      store.set(endpoint_key(1), wrong);
      std::string text;
      EXPECT_EQ(failure_of([&worker] { worker.rpc_sync<int>(1, "one"); }, &text), Status::kPeerLost);
      EXPECT_NE(text.find("no route to rank 1"), std::string::npos) << text;
      store.set(endpoint_key(1), endpoint);
      expect_call_succeeds_eventually(worker, 1);  // the cancellation may still use the wrong address
    }
    EXPECT_TRUE(worker.shutdown().empty());
  });
}

TEST(RpcTensorPipeTest, SelectsTransportsAndChannelsByName) {
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
  rpc::RpcOptions options = rpc_options("tensorpipe", Store::inproc(), 0, 1, "?transports=missing");
  EXPECT_EQ(failure_of([&options] { rpc::Worker::join("me", options); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("transports does not know 'missing'; available: uv, shm"), std::string::npos) << text;
  options = rpc_options("tensorpipe", Store::inproc(), 0, 1, "?channels=missing");
  EXPECT_EQ(failure_of([&options] { rpc::Worker::join("me", options); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("channels does not know 'missing'; available: basic, mpt, cma"), std::string::npos) << text;
  options = rpc_options("tensorpipe", Store::inproc(), 0, 1, "?device_maps=you:0=0");
  EXPECT_EQ(failure_of([&options] { rpc::Worker::join("me", options); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("maps to worker you, which does not exist"), std::string::npos) << text;
}

TEST(RpcTensorPipeTest, AcceptsWorkersAfterForeignConnections) {
  Store store = Store::inproc();
  on_ranks(3, [&store](int rank) {
    const auto worker =
        rpc::Worker::join(worker_name(rank), rpc_options("tensorpipe", store, rank, 3, "?transports=uv"));
    if (rank == 0) {
      EXPECT_EQ(worker.rpc_sync<int>(1, "one"), 1);
      EXPECT_TRUE(connect_and_close(store.get(endpoint_key(1))));
      for (int i = 0; i < 2; ++i)
        connect_and_close(store.get(endpoint_key(1)));  // the listener may be about to be replaced
    }
    worker.all_gather(0);
    // A connection attempt fails while the listener is being replaced.
    expect_call_succeeds_eventually(worker, (rank + 2) % 3);  // a worker without a pipe to it
    worker.shutdown();
  });
}

// Closes the TCP connections of this process to the worker with this endpoint, as a network failure would.
int cut(const std::string& endpoint) {
  const sockaddr_in address = address_in(endpoint);
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

// Replaces the endpoint of a worker by a port that accepts connections and never answers.
class SilentListener {
 public:
  SilentListener(Store store, int rank)
      : store_(std::move(store)), key_(endpoint_key(rank)), endpoint_(store_.get(key_)) {
    sockaddr_in address = address_in(endpoint_);
    address.sin_port = 0;
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_, 8), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    std::string here = endpoint_;
    const size_t port = here.find(':', here.find("uv://") + 5) + 1;
    here.replace(port, std::to_string(ntohs(address_in(endpoint_).sin_port)).size(),
                 std::to_string(ntohs(address.sin_port)));
    store_.set(key_, here);
  }
  ~SilentListener() { ::close(socket_); }
  SilentListener(const SilentListener&) = delete;
  SilentListener& operator=(const SilentListener&) = delete;

  int socket() const { return socket_; }
  // Waits for a connection. Returns false after kWaitLimit.
  bool is_connected() const {
    pollfd polled = {socket_, POLLIN, 0};
    return ::poll(&polled, 1, static_cast<int>(kWaitLimit.count() * 1000)) == 1;
  }
  void restore_endpoint() const { Store(store_).set(key_, endpoint_); }

 private:
  Store store_;
  const std::string key_;
  const std::string endpoint_;
  const int socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
};

// Closes the next `connections` connections to a worker. Restores its endpoint before it closes the last one.
class ClosingListener {
 public:
  ClosingListener(Store store, int rank, int connections)
      : listener_(std::move(store), rank), left_(connections), thread_([this] { end_all(); }) {}
  ~ClosingListener() {
    ::shutdown(listener_.socket(), SHUT_RDWR);  // ends accept
    thread_.join();
  }
  ClosingListener(const ClosingListener&) = delete;
  ClosingListener& operator=(const ClosingListener&) = delete;

  // Waits up to 20 s until all have been closed. Returns false on timeout.
  bool is_done() { return done_.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready; }

 private:
  void end_all() {
    for (; left_ > 0; --left_) {
      const int connection = ::accept(listener_.socket(), nullptr, nullptr);
      if (connection < 0) return;
      if (left_ == 1) listener_.restore_endpoint();
      ::close(connection);
    }
    done_.set_value();
  }

  const SilentListener listener_;
  int left_;
  std::promise<void> done_;
  std::thread thread_;
};

// The listener of TensorPipe leaves a connection open that came just before the listener failed.
TEST(RpcTensorPipeTest, AConnectionThatIsNeverAcceptedFailsItsCalls) {
  Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const auto worker =
        rpc::Worker::join(worker_name(rank), rpc_options("tensorpipe", store, rank, 2, "?transports=uv"));
    if (rank == 0) {
      const SilentListener silent(store, 1);
      const auto call = worker.rpc_async<int>({1, std::chrono::seconds(60)}, "one");
      EXPECT_TRUE(silent.is_connected());
      silent.restore_endpoint();
      std::string text;
      EXPECT_EQ(failure_of([&call] { call.wait(); }, &text), Status::kPeerLost);
      EXPECT_NE(text.find("the connection to rank 1 broke"), std::string::npos) << text;
      expect_call_succeeds_eventually(worker, 1);
    }
    EXPECT_TRUE(worker.shutdown().empty());
  });
}

// The state of a call that runs until it is cancelled or released.
struct Held {
  std::promise<void> began;
  std::promise<bool> was_cancelled;
  std::atomic<bool> released = false;
};

// Breaks the connection of a call and `closed` later ones. The function must be cancelled if `notified`, and the next
// call must find a new connection.
void break_connection(bool cancel, int closed, bool notified, bool express = false) {
  static Held* held = nullptr;
  [[maybe_unused]] static const bool registered = [] {
    rpc::register_function("hold on", [] {
      held->began.set_value();
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!rpc::cancelled() && !held->released && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      held->was_cancelled.set_value(rpc::cancelled());
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
      // Gives rank 1 a pipe for its report of lost replies, so that none of the resent cancellations is due to that,
      // and opens the express connection.
      for (int i = 0; i < (express ? 200 : 1); ++i) EXPECT_EQ(worker.rpc_sync<int>(1, "one"), 1);
      const auto call = worker.rpc_async<void>({1, kNoTimeout}, "hold on");
      EXPECT_TRUE(in_time(call_held.began.get_future())) << "the call does not begin";
      const std::string endpoint = store.get(endpoint_key(1));
      std::optional<ClosingListener> listener;
      if (closed > 0) listener.emplace(store, 1, closed);
      EXPECT_GT(express ? cut_express(endpoint) : cut(endpoint), 0);
      if (cancel) call.cancel();
      EXPECT_TRUE(call.wait_for(std::chrono::seconds(20)));
      std::string text;
      EXPECT_EQ(failure_of([&call] { call.wait(); }, &text), cancel ? Status::kCancelled : Status::kPeerLost);
      // Rank 1 may detect the broken express connection first, and report lost replies.
      const char* const part = express ? " broke" : "the connection to rank 1 broke";
      EXPECT_EQ(text.find(part) != std::string::npos, !cancel) << text;
      EXPECT_TRUE(!listener || listener->is_done());
      if (!notified) {
        expect_call_succeeds_eventually(worker, 1);  // the first may use the broken connection
        call_held.released = true;
      }
      EXPECT_EQ(call_held.was_cancelled.get_future().get(), notified);
      if (express) expect_call_succeeds_eventually(worker, 1);  // rank 1 may have detected the break first, see above
      EXPECT_EQ(worker.rpc_sync<int>(1, "one"), 1);
    }
    EXPECT_TRUE(worker.shutdown().empty());
  });
}

TEST(RpcTensorPipeTest, BrokenConnectionFailsItsCalls) { break_connection(false, 0, true); }
TEST(RpcTensorPipeTest, BrokenExpressConnectionFailsItsCalls) { break_connection(false, 0, true, true); }
TEST(RpcTensorPipeTest, ResendsCancelsLostWithAConnection) { break_connection(true, 0, true); }
TEST(RpcTensorPipeTest, ResendsCancelsLostWithAnExpressConnection) { break_connection(true, 0, true, true); }
// After a broken connection a cancellation is resent up to three times; then no connection is opened.
TEST(RpcTensorPipeTest, ResendsCancelsOnLaterConnections) { break_connection(false, 2, true); }
TEST(RpcTensorPipeTest, LimitsResentCancels) { break_connection(false, 4, false); }

TEST(RpcTensorPipeTest, WorkersWithDifferentChannelsUseTheCommonOne) {
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
