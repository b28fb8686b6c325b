// SPDX-License-Identifier: Apache-2.0
//
// Connections break during calls: each call ends exactly once, with its result or an error that names the peer.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <future>
#include <mutex>
#include <random>

#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

using std::chrono::seconds;

constexpr int kUnderway = 64;  // concurrent calls

// The TCP connections of this process, which are those of the agents.
std::vector<int> connections() {
  std::vector<int> found;
  std::error_code vanished;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", vanished)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    const bool is_tcp = ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.sin_family == AF_INET;
    if (is_tcp) found.push_back(fd);
  }
  return found;
}

bool cut_one(std::mt19937* random) {
  const std::vector<int> all = connections();
  return !all.empty() && ::shutdown(all[(*random)() % all.size()], SHUT_RDWR) == 0;
}

// How one call ended.
struct Ending {
  std::atomic<int> times = 0;
  std::atomic<int> status = 0;
  std::string text;
};

// Limits the number of concurrent calls.
class Window {
 public:
  void enter() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, seconds(100), [this] { return underway_ < kUnderway; }));
    ++underway_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --underway_;
    changed_.notify_all();
  }
  bool drain() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(100), [this] { return underway_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int underway_ = 0;
};

std::atomic<int> served = 0;

struct Call {
  Ending* ending;
  Window* window;
};

void on_end(void* ctx, bp_rpc_payload* result, const bp_error* err) {
  const std::unique_ptr<Call> call(static_cast<Call*>(ctx));
  if (err != nullptr) {
    call->ending->status = err->status;
    call->ending->text = err->text;
  } else {
    bp_rpc_payload_release(result);
  }
  ++call->ending->times;
  call->window->leave();
}

// Without a timeout, so only a reply or a report of the agent ends it.
void begin(const rpc::Worker& worker, const std::vector<std::byte>& bytes, Ending* ending, Window* window) {
  bp_rpc_content content = {};
  content.struct_size = sizeof(content);
  const bp_buffer buffer = {const_cast<std::byte*>(bytes.data()), bytes.size(), BP_HOST, 0};
  content.buffers = &buffer;
  content.buffer_count = 1;
  auto call = std::make_unique<Call>(Call{ending, window});
  bp_error err;
  bp_error_init(&err);
  ASSERT_EQ(bp_rpc_call(worker.get(), 1, "served", &content, BP_NO_TIMEOUT, on_end, call.get(), nullptr, &err), BP_OK)
      << err.text;
  call.release();  // NOLINT(bugprone-unused-return-value): on_end deletes it
}

// Sets the promise, also after an exception.
struct Through {
  std::promise<void>& promise;
  ~Through() { promise.set_value(); }
};

class RpcCutsTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Agents, RpcCutsTest, testing::ValuesIn(agents_with_connections()),
                         [](const auto& info) { return info.param; });

TEST_P(RpcCutsTest, EachCallEndsOnce) {
  const char* const asked = std::getenv("BACKPLANE_RPC_CALLS");
  const int calls = asked == nullptr ? 3000 : std::atoi(asked);
  [[maybe_unused]] static const bool registered = [] {
    rpc::register_function("served", [](const rpc::Array<uint8_t>&) { ++served; });
    return true;
  }();
  served = 0;
  std::deque<Ending> endings(static_cast<size_t>(calls));
  const std::vector<std::byte> small(100);  // both are in use until the workers have left
  const std::vector<std::byte> large(200000);
  int cuts = 0;
  std::promise<void> through;
  const std::string agent = GetParam() == "tensorpipe" ? "?transports=uv&channels=basic" : "";
  in_world(
      GetParam(), 2,
      [&](const rpc::Worker& worker) {
        if (worker.rank() != 0) return through.get_future().wait();  // shutdown has a time limit, which this may exceed
        const Through at_the_end{through};
        Window window;
        std::mt19937 random(1);
        for (int i = 0; i < calls; ++i) {
          window.enter();
          begin(worker, i % 50 == 0 ? large : small, &endings[static_cast<size_t>(i)], &window);
          if (i % 100 == 99 && cut_one(&random)) ++cuts;
        }
        EXPECT_TRUE(window.drain());
      },
      agent);
  int failed = 0;
  for (const Ending& ending : endings) {
    ASSERT_EQ(ending.times, 1);
    if (ending.status == BP_OK) continue;
    ++failed;
    ASSERT_EQ(ending.status, BP_PEER_LOST) << ending.text;
    ASSERT_NE(ending.text.find("'served' on worker 'worker1' (rank 1)"), std::string::npos) << ending.text;
  }
  EXPECT_GT(cuts, calls / 100 / 2);
  EXPECT_LE(served, calls);
  EXPECT_GE(served, calls - failed);
  RecordProperty("cuts", cuts);
  RecordProperty("failed", failed);
  if (GetParam() == "ZMQ") {  // resends
    EXPECT_EQ(failed, 0);
    EXPECT_EQ(served, calls);
  }
}

}  // namespace
}  // namespace backplane::test
