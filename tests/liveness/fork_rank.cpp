// SPDX-License-Identifier: Apache-2.0
//
// One of two ranks under `backplane run`. It forks while it has a group with an operation in flight, stores, a worker
// and more. The child uses and releases all of that, makes its own, and ends by exit. Afterwards the parent's still
// work.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "backplane/backplane.hpp"
#include "backplane/gradients.hpp"
#include "backplane/rpc.hpp"

namespace {

using namespace backplane;  // NOLINT: a program

void fail(const std::string& what) {
  std::fprintf(stderr, "process %d: %s\n", ::getpid(), what.c_str());
  std::_Exit(3);
}

void require(bool condition, const char* what) {
  if (!condition) fail(std::string("wrong: ") + what);
}

std::latch answering(1);

int world_size() { return std::atoi(std::getenv("WORLD_SIZE")); }
int rank() { return std::atoi(std::getenv("RANK")); }

int sum_of_ranks(ProcessGroup group) {
  int sum = group.rank();
  group.all_reduce(as_buffer(sum));
  return sum;
}

GroupOptions group_over(const Store& store, const std::string& backend = "") {
  GroupOptions options;
  options.backend = backend;
  options.store = store;
  options.rank = rank();
  options.world_size = world_size();
  return options;
}

rpc::Worker join(const std::string& name, const Store& store) {
  rpc::RpcOptions options;
  options.store = store;
  options.rank = rank();
  options.world_size = world_size();
  return rpc::init_rpc(name + std::to_string(rank()), options);
}

// The message with tag 6, unless the backend cannot probe.
std::optional<Message> probe(ProcessGroup& group, int peer) {
  try {
    return group.probe(peer, 6);
  } catch (const Error& e) {
    require(e.status() == Status::kUnsupported, e.what());
    int six = 0;
    group.recv(as_buffer(six), peer, 6);
    return std::nullopt;
  }
}

// Of everything that has a handle. The order of the members is that of their construction.
struct Objects {
  explicit Objects(ProcessGroup made) : group(std::move(made)) {
    Work sending = group.isend(as_buffer(six), 1 - rank(), 6);
    probed = probe(group, 1 - rank());
    sending.wait();
  }

  StoreServer server;
  ProcessGroup group;
  ProcessGroup part = group.split(0);
  Store tcp = Store::connect("127.0.0.1", server.port());
  Store file = Store::file(std::string(std::getenv("TEST_DIRECTORY")) + "/parent" + std::to_string(rank()));
  Store inproc = Store::inproc();
  Store prefix = inproc.with_prefix("a/");
  ProcessGroup alone = ProcessGroup::create({.backend = "inproc", .rank = 0, .world_size = 1, .store = inproc});
  Memory<int> memory = group.allocate<int>(1000);
  std::unique_ptr<GradientReducer> reducer = std::make_unique<GradientReducer>(group);
  int received = 0;
  Work pending = group.irecv(as_buffer(received), 1 - rank(), 5);
  const int six = 6;
  std::optional<Message> probed;
  rpc::Worker worker = rpc::init_rpc("parent" + std::to_string(rank()));
  rpc::Future<int> answer = worker.rpc_async<int>(1 - rank(), "answer");
  std::optional<rpc::RRef<int>> reference = worker.make_rref(7);
};

// A child that keeps all descriptors of its parent open, until it is destroyed.
class Bystander {
 public:
  Bystander() : pid_(::fork()) {
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }
  ~Bystander() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;

 private:
  const pid_t pid_;
};

std::optional<ProcessGroup> kept;  // its destructor runs in parent and child

// The call must fail in the child by the sentence that names the parent.
void refused(const char* what, const std::function<void()>& call) {
  const std::string expected = "was made in process " + std::to_string(::getppid()) + ", of which process " +
                               std::to_string(::getpid()) + " is a fork; make a new one in this process";
  try {
    call();
  } catch (const Error& e) {
    if (e.status() == Status::kInvalid && std::string(e.what()).find(expected) != std::string::npos) return;
    fail(std::string(what) + " failed otherwise: " + e.what());
  }
  fail(std::string(what) + " succeeded");
}

void use(Objects* parents) {
  Objects& own = *parents;
  int value = 0;
  refused("all_reduce", [&] { own.group.all_reduce(as_buffer(value)); });
  refused("send", [&] { own.group.send(as_buffer(value), 1 - rank()); });
  refused("irecv", [&] { static_cast<void>(own.group.irecv(as_buffer(value), 1 - rank())); });
  refused("name", [&] { static_cast<void>(own.group.name()); });
  refused("new_group", [&] { own.group.new_group({0, 1}); });
  refused("allocate", [&] { own.group.allocate<int>(1); });
  refused("abort", [&] { own.group.abort("by a child"); });
  refused("part", [&] { own.part.barrier(); });
  refused("alone", [&] { own.alone.barrier(); });
  refused("wait", [&] { own.pending.wait(); });
  refused("is_completed", [&] { static_cast<void>(own.pending.is_completed()); });
  own.pending.cancel();
  refused("tcp", [&] { own.tcp.set("key", "value"); });
  refused("file", [&] { own.file.set("key", "value"); });
  refused("inproc", [&] { own.inproc.get("key"); });
  refused("prefix", [&] { own.prefix.get("key"); });
  refused("with_prefix", [&] { own.tcp.with_prefix("b/"); });
  refused("create", [&] { ProcessGroup::create(group_over(own.inproc, "inproc")); });
  refused("join", [&] { join("stray", own.tcp); });
  refused("server", [&] { own.server.wait(); });
  refused("rpc_async", [&] { own.worker.rpc_async<int>(1 - rank(), "answer"); });
  refused("future", [&] { own.answer.wait(); });
  refused("wait_for", [&] { own.answer.wait_for(std::chrono::seconds(60)); });
  refused("then", [&] { own.answer.then([](const rpc::Future<int>&) {}); });
  own.answer.cancel();
  refused("reference", [&] { own.reference->to_here(); });
  refused("local_value", [&] { own.reference->local_value(); });
  refused("shutdown", [&] { own.worker.shutdown(); });
  refused("destroy", [&] { own.group.destroy(); });
  refused("destroy", [&] { own.alone.destroy(); });
  require(!is_initialized(), "the child has a default group");
  refused("default group", [] { static_cast<void>(default_group()); });
  refused("destroy_process_group", [] { destroy_process_group(); });
  require(bp_memory_native(nullptr) == 0 && own.group.rank() == -1, "the child has a rank");
}

void make_own(uint16_t port) {
  Store inproc = Store::inproc();
  inproc.set("key", "value");
  ProcessGroup::create({.backend = "inproc", .rank = 0, .world_size = 1, .store = inproc}).barrier();
  Store file = Store::file(std::string(std::getenv("TEST_DIRECTORY")) + "/children");
  Store tcp = Store::connect("127.0.0.1", port);
  ProcessGroup group = ProcessGroup::create(group_over(tcp));
  require(sum_of_ranks(group) == 1, "sum over the backend");
  require(sum_of_ranks(ProcessGroup::create(group_over(file, group.backend()))) == 1, "sum by a file store");
  require(sum_of_ranks(group.split(0)) == 1, "sum in a part");
  const rpc::Worker worker = join("child", tcp);
  answering.count_down();
  require(rpc::rpc_sync<int>(1 - rank(), "answer") == 42, "answer");
  worker.shutdown();
  kept = group;  // ends at exit
}

[[noreturn]] void be_child(std::unique_ptr<Objects> parents, uint16_t port) {
  use(parents.get());
  static std::unique_ptr<Objects> left_to_exit;
  if (rank() == 0) parents.reset();
  left_to_exit = std::move(parents);
  make_own(port);
  std::exit(0);
}

// Nobody waits for the bystander, which has the sockets as well.
void end(std::unique_ptr<Objects> objects) {
  objects->group.destroy();
  objects->tcp = objects->inproc;
  objects->server.wait(std::chrono::seconds(60));
  const uint16_t port = objects->server.port();
  objects.reset();
  const StoreServer again("127.0.0.1", port);
}

}  // namespace

int main() {
  rpc::register_function("answer", [] {
    answering.wait();
    return 42;
  });
  auto objects = std::make_unique<Objects>(init_process_group());
  Objects& own = *objects;
  kept = own.group;
  const auto port = static_cast<uint16_t>(std::stoi(own.group.broadcast_object(std::to_string(own.server.port()), 0)));
  const Bystander bystander;
  const pid_t child = ::fork();
  if (child == 0) be_child(std::move(objects), port);
  int status = -1;
  require(::waitpid(child, &status, 0) == child && status == 0, "end of the child");

  const int five = 5;
  own.group.send(as_buffer(five), 1 - rank(), 5);
  own.pending.wait();
  require(own.received == 5, "the message that was awaited");
  if (own.probed) own.group.recv(as_buffer(own.received), std::move(*own.probed));
  require(!own.probed || own.received == 6, "the message that was probed");
  require(sum_of_ranks(own.group) == 1 && sum_of_ranks(own.part) == 1, "sums");
  own.alone.barrier();
  for (Store* store : {&own.tcp, &own.file, &own.inproc, &own.prefix}) {
    store->set("key", "parent");
    require(store->get("key") == "parent", "store");
  }
  std::vector<float> gradient(10, 1);
  own.reducer->add("weights", gradient);
  own.reducer->finish();
  require(gradient.front() == 2, "gradient");
  answering.count_down();
  require(own.answer.wait() == 42 && own.reference->to_here() == 7, "worker");
  own.reference.reset();
  own.worker.shutdown();
  own.group.barrier();  // the children of both ranks have left the server
  end(std::move(objects));
  return 0;
}
