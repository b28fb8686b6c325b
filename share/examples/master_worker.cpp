// SPDX-License-Identifier: Apache-2.0
//
// Rank 0 drives the other ranks: it creates buffers on them, runs functions and a collective, and reads the results.
//
//     backplane run -n 4 master_worker
#include <backplane/compat/master_worker.hpp>
#include <cstdio>
#include <exception>
#include <numeric>

namespace compat = backplane::compat;

namespace {

int work() {
  compat::register_command("count up", [](compat::Distributed<double> x, double from) {
    const auto mine = x.local();
    std::iota(mine.begin(), mine.end(), from);
  });
  compat::register_command("sum", [](compat::Distributed<double> x) {
    const auto mine = x.local();
    return std::accumulate(mine.begin(), mine.end(), 0.0);
  });
  auto master = compat::init_master_worker();
  if (!master) return 0;  // a worker whose master has ended
  const auto x = master->make<double>(1000);
  master->run("count up", x, 1.0);  // 1, 2, ... 1000 on each worker
  master->all_reduce(x);
  const double expected = 500500.0 * master->workers();
  for (const double sum : master->ask<double>("sum", x)) {
    if (sum != expected) throw std::runtime_error("a worker's sum is wrong");
  }
  const double last = master->read(x, 1).back();
  std::printf("the master had %d workers; together their last element is %.0f, and the sum %.0f\n", master->workers(),
              last, expected);
  master->shutdown();
  return last == 1000.0 * master->workers() ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return work();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "master_worker: %s\n", e.what());
    return 1;
  }
}
