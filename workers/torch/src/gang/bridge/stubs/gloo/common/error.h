// c10d's headers include this file and use nothing of it.
#pragma once
