// SPDX-License-Identifier: Apache-2.0
//
// A master and its workers, and what becomes of commands that do not work.
#include <cstdio>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>

#include "backplane/master_worker.hpp"

using namespace backplane;  // NOLINT: a program

namespace {

void expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error(what);
}

template <typename Function>
std::string failure_of(const Function& function, Status status) {
  try {
    function();
  } catch (const Error& e) {
    expect(e.status() == status, e.what());
    return e.what();
  }
  throw std::runtime_error("something succeeded that cannot");
}

// Each of them is given before its failure is known, and the next one after it.
void commands_that_never_begin(Master* master) {
  const auto unknown = master->run("no such command");
  const auto wrong = master->run_on(1, "add", std::string("not a number"));
  const auto answers = master->run<int>("add", 1, 2);
  for (const auto& end : unknown) failure_of([&end] { end.wait(); }, Status::kInvalid);
  failure_of([&wrong] { wrong.wait(); }, Status::kInvalid);
  for (const auto& answer : answers) expect(answer.wait() == 3, "a wrong sum");
}

void a_command_that_is_cancelled(Master* master) {
  const auto slow = master->run_on(1, "wait at the gate");
  const auto waiting = master->run_on<int>(1, "count");
  const auto after = master->run_on<int>(1, "count");
  waiting.cancel();
  failure_of([&waiting] { waiting.wait(); }, Status::kCancelled);
  rpc::rpc_sync(1, "open the gate");
  slow.wait();
  expect(after.wait() == 1, "a command ran that was cancelled before its turn");
}

void many_at_once(Master* master) {
  std::vector<rpc::Future<int>> ends;
  for (int i = 0; i < 1000; ++i) ends.push_back(master->run_on<int>(2, "count"));
  for (int i = 0; i < 1000; ++i) expect(ends[static_cast<size_t>(i)].wait() == i + 1, "commands out of order");
  expect(master->run_on<int>(2, "threads").wait() < 150, "a thread for each command that waits");
}

void buffers(Master* master) {
  const auto x = master->make<float>(3, 1.0F);
  master->write(x, 2, {1, 2, 3});
  master->all_reduce(x);
  expect(master->read(x, 1) == std::vector<float>({2, 3, 4}), "a wrong sum of buffers");
  for (const int worker : {-1, 0, 3}) {
    const std::string text = failure_of([&] { master->read(x, worker); }, Status::kInvalid);
    expect(text.find("they are 1 to 2") != std::string::npos, text);
  }
  master->drop(x);
  failure_of([&] { master->read(x, 1); }, Status::kInvalid);
}

int work(const std::string& backend) {
  register_command("add", [](int a, int b) { return a + b; });
  static std::promise<void> gate;
  register_command("wait at the gate", [] { gate.get_future().wait(); });
  rpc::register_function("open the gate", [] { gate.set_value(); });
  register_command("count", [] {
    static int count = 0;
    return ++count;
  });
  register_command("threads", [] {
    int threads = 0;
    char line[256];
    std::FILE* const status = std::fopen("/proc/self/status", "r");
    while (std::fgets(line, sizeof(line), status) != nullptr) std::sscanf(line, "Threads: %d", &threads);
    std::fclose(status);
    return threads;
  });
  GroupOptions options;
  options.backend = backend;
  auto master = init_master_worker(options);
  if (!master) return 0;
  commands_that_never_begin(&*master);
  a_command_that_is_cancelled(&*master);
  many_at_once(&*master);
  buffers(&*master);
  // Nobody gets this one's futures; the failure comes to light at the end.
  master->make<double>(uint64_t{1} << 60);  // more than any vector has
  failure_of([&master] { master->shutdown(); }, Status::kInternal);
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
