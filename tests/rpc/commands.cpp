// SPDX-License-Identifier: Apache-2.0
//
// Master-worker mode: commands, buffers, collectives, and commands that fail.
#include <chrono>
#include <cstdio>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include "backplane/compat/master_worker.hpp"

using namespace backplane;  // NOLINT: a program

namespace {

void expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error(what);
}

// The failure of `function`; it must have this status and contain `part`.
template <typename Function>
std::string failure_of(const Function& function, Status status, const std::string& part) {
  try {
    function();
  } catch (const Error& e) {
    const std::string text = e.what();
    expect(e.status() == status && text.find(part) != std::string::npos, text);
    return text;
  }
  throw std::runtime_error("a function succeeded that must fail with '" + part + "'");
}

// Commands are issued before the failure of the previous ones is known.
void rejected_commands(compat::Master* master) {
  const auto unknown = master->run("no such command");
  const auto wrong = master->run_on(1, "add", std::string("not a number"));
  const auto answers = master->run<int>("add", 1, 2);
  for (const auto& end : unknown) {
    failure_of([&end] { end.wait(); }, Status::kInvalid, "no function 'no such command' is registered there");
  }
  failure_of([&wrong] { wrong.wait(); }, Status::kInvalid, "of 'add' must be int: a string was sent");
  for (const auto& answer : answers) expect(answer.wait() == 3, "a wrong sum");
}

void throwing_command(compat::Master* master) {
  const auto end = master->run_on(2, "throw");
  const std::string text = failure_of([&end] { end.wait(); }, Status::kInternal, "");
  expect(text == "'throw' on worker 'worker2' (rank 2) failed: std::out_of_range: no such row", text);
}

void cancelled_command(compat::Master* master) {
  const auto slow = master->run_on(1, "wait until released");
  const auto waiting = master->run_on<int>(1, "count");
  const auto after = master->run_on<int>(1, "count");
  waiting.cancel();
  failure_of([&waiting] { waiting.wait(); }, Status::kCancelled, "cancelled by the caller");
  rpc::rpc_sync(1, "release");
  slow.wait();
  expect(after.wait() == 1, "a cancelled command ran");
}

void many_commands(compat::Master* master) {
  std::vector<rpc::Future<int>> ends;
  for (int i = 0; i < 1000; ++i) ends.push_back(master->run_on<int>(2, "count"));
  for (int i = 0; i < 1000; ++i) expect(ends[static_cast<size_t>(i)].wait() == i + 1, "commands out of order");
  expect(master->run_on<int>(2, "threads").wait() < 150, "the worker has a thread per waiting command");
}

void buffers(compat::Master* master) {
  const auto x = master->make<float>(3, 1.0F);
  master->write(x, 2, {1, 2, 3});
  master->all_reduce(x);
  expect(master->read(x, 1) == std::vector<float>({2, 3, 4}), "a wrong sum of buffers");
  for (const int worker : {-1, 0, 3}) {
    failure_of([&] { master->read(x, worker); }, Status::kInvalid, "they are 1 to 2");
  }
  master->drop(x);
  failure_of([&] { master->read(x, 1); }, Status::kInvalid, "it was dropped");
}

void end_all(const std::vector<rpc::Future<void>>& ends) {
  for (const auto& end : ends) end.wait();
}

void collectives(compat::Master* master) {
  const auto each = master->make<float>(2);
  const auto all = master->make<float>(4);
  const auto write = [&] {
    master->write(each, 1, {1, 2});
    master->write(each, 2, {3, 4});
  };
  const auto hold = [&](const compat::Distributed<float>& x, const std::vector<float>& one,
                        const std::vector<float>& two, const std::string& what) {
    expect(master->read(x, 1) == one && master->read(x, 2) == two, "a wrong result of " + what);
  };
  write();
  end_all(master->broadcast(each, 2));
  hold(each, {3, 4}, {3, 4}, "broadcast");
  write();
  end_all(master->reduce(each, 1, ReduceOp::kMax));
  hold(each, {3, 4}, {3, 4}, "reduce");
  write();
  end_all(master->reduce(each, 2));
  hold(each, {1, 2}, {4, 6}, "reduce");
  end_all(master->gather(each, all, 2));
  hold(all, {0, 0, 0, 0}, {1, 2, 4, 6}, "gather");
  end_all(master->scatter(all, each, 2));
  hold(each, {1, 2}, {4, 6}, "scatter");
  master->write(all, 1, {5, 6, 7, 8});
  end_all(master->scatter(all, each, 1));
  hold(each, {5, 6}, {7, 8}, "scatter");
  end_all(master->all_gather(each, all));
  hold(all, {5, 6, 7, 8}, {5, 6, 7, 8}, "all_gather");
  for (const int root : {0, 3}) {
    const std::string who = "they are 1 to 2";
    failure_of([&] { master->broadcast(each, root); }, Status::kInvalid, who);
    failure_of([&] { master->reduce(each, root); }, Status::kInvalid, who);
    failure_of([&] { master->gather(each, all, root); }, Status::kInvalid, who);
    failure_of([&] { master->scatter(all, each, root); }, Status::kInvalid, who);
  }
  const std::string holds = "a buffer of 2 elements does not hold ";
  failure_of([&] { master->all_gather(all, each); }, Status::kInvalid, holds + "4 of each of 2 workers");
  failure_of([&] { master->gather(each, each, 1); }, Status::kInvalid, holds + "2 of each of 2 workers");
  failure_of([&] { master->scatter(each, each, 1); }, Status::kInvalid, holds + "2 of each of 2 workers");
  // A failure of one worker fails all, and none stays blocked in a collective.
  master->drop(all);
  for (const auto& ends : {master->gather(each, all, 1), master->scatter(all, each, 1)}) {
    for (const auto& end : ends) failure_of([&end] { end.wait(); }, Status::kInvalid, "it was dropped");
  }
  master->write(each, 2, {1, 2});
  end_all(master->all_reduce(each));
  hold(each, {6, 8}, {6, 8}, "all_reduce after a dropped buffer");
}

void late_worker_in_a_barrier(compat::Master* master) {
  const auto late = master->run_on(2, "wait until released");
  const auto ends = master->barrier();
  const bool waited = !ends[0].wait_for(std::chrono::milliseconds(20));
  rpc::rpc_sync(2, "release");
  end_all(ends);
  late.wait();
  expect(waited, "a barrier did not wait");
}

int work(const std::string& backend) {
  compat::register_command("add", [](int a, int b) { return a + b; });
  compat::register_command("throw", [] { throw std::out_of_range("no such row"); });
  static std::promise<void> gate;
  compat::register_command("wait until released", [] { gate.get_future().wait(); });
  rpc::register_function("release", [] { gate.set_value(); });
  compat::register_command("count", [] {
    static int count = 0;
    return ++count;
  });
  compat::register_command("threads", [] {
    int threads = 0;
    char line[256];
    std::FILE* const status = std::fopen("/proc/self/status", "r");
    while (std::fgets(line, sizeof(line), status) != nullptr) std::sscanf(line, "Threads: %d", &threads);
    std::fclose(status);
    return threads;
  });
  GroupOptions options;
  options.backend = backend;
  if (auto master = compat::init_master_worker(options)) {
    rejected_commands(&*master);
    throwing_command(&*master);
    cancelled_command(&*master);
    many_commands(&*master);
    buffers(&*master);
    collectives(&*master);
    late_worker_in_a_barrier(&*master);
    // Its futures are dropped, so shutdown reports the failure.
    master->make<double>(uint64_t{1} << 60);  // exceeds the size of a vector
    failure_of([&master] { master->shutdown(); }, Status::kInternal, "'backplane.make' on worker");
  }
  // The same processes start the mode again.
  if (auto master = compat::init_master_worker(options)) {
    buffers(&*master);
    master->shutdown();
  }
  return 0;
}

}  // namespace

int main(int, char** arguments) {
  try {
    return work(arguments[1]);
  } catch (const std::exception& e) {
    std::printf("FAILED: %s\n", e.what());
    return 1;
  }
}
