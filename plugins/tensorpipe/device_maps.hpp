// SPDX-License-Identifier: Apache-2.0
//
// Which device of this worker is which of another one's: torch's device_maps, their rules, and their reverse, by which
// results travel back. Pure functions.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::tensorpipe {

using DeviceMap = std::map<int, int>;                 // device here to device there
using DeviceMaps = std::map<std::string, DeviceMap>;  // by the other worker's name

using DeviceSet = std::set<int>;

// "worker1:0=1,1=0;worker2:0=0"; empty: none. Throws sdk::Failure (BP_INVALID) with the place that is wrong, also if a
// device is named twice on either side.
DeviceMaps parse_device_maps(std::string_view text);
std::string format_device_maps(const DeviceMaps& maps);

// A worker as all know it.
struct WorkerDevices {
  std::string name;
  int count = 0;  // of its devices
  DeviceMaps maps;
  std::string why_none = {};  // what it lacks if it has none; known of this process alone
};

// Throws sdk::Failure (BP_INVALID) that names the first worker whose maps name an unknown worker, or a device that is
// not there on either side.
void check_device_maps(const std::vector<WorkerDevices>& workers);

// For worker `name`: which device of another worker's own answers to which of its own, from the maps of those who call
// it: {"caller": {device here: device there}}.
DeviceMaps reverse_device_maps(const std::vector<WorkerDevices>& workers, const std::string& name);

// Where buffers on the devices of worker `from` arrive at worker `to`: by its own map, and where that says nothing by
// the reverse of the other's, so that results travel back. Messages do not tell calls from results.
DeviceMap device_map_between(const WorkerDevices& from, const WorkerDevices& to);

}  // namespace backplane::tensorpipe
