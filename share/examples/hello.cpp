// SPDX-License-Identifier: Apache-2.0
//
//     backplane run -n 4 --backend gloo hello
#include <backplane/backplane.hpp>
#include <cstdio>
#include <vector>

int main() {
  backplane::ProcessGroup group = backplane::init_process_group();
  std::vector<int> sum = {group.rank()};
  group.all_reduce(sum);
  std::printf("rank %d of %d over %s: the ranks add up to %d\n", group.rank(), group.world_size(),
              group.backend().c_str(), sum[0]);
  backplane::destroy_process_group();
}
